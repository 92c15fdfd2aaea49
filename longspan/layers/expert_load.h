// The routers' choices for the tokens of a step, and the gradient of the auxiliary loss with
// respect to the routers' scores. L: layers of the model, E: experts of a layer, C: rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// RowContext passes an ExpertLoad to every layer. Mixtures of experts add to the load in their
/// forward.
class ExpertLoad {
 public:
  /// `device`: where the layers compute. Additions do not block the host.
  ExpertLoad(int64_t num_layers, int64_t num_experts, at::Device device = at::kCPU);

  /// Adds the choices in layer number `layer`. counts_E: number of real rows (rows without padding)
  /// for each expert. scores_E: sums of these rows' scores, fp64; may be undefined.
  void add(int64_t layer, const at::Tensor& counts_E, const at::Tensor& scores_E);

  /// Rows for each expert; zeros for layers without experts. fp64, [L, E].
  const at::Tensor& counts_LE() const { return counts_LE_; }
  /// The routers' scores, summed over all layers and real rows. fp64, [E].
  const at::Tensor& scores_E() const { return scores_E_; }
  void clear();

  /// Whether sums of scores are needed.
  bool sums_scores = false;
  /// d loss / d score, the same for all real rows and layers, fp64, [E]; undefined: none. The
  /// layers' backwards read this gradient.
  at::Tensor gradient_E;

 private:
  at::Tensor counts_LE_, scores_E_;
};

}  // namespace longspan
