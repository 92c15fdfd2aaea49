// What the routers of a model choose for the tokens of a step, and what an auxiliary loss adds to
// their gradients. L: layers of the model, E: experts of a layer, C: rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longspan {

/// Is handed to every layer by RowContext; mixtures of experts add to it in their forward.
class ExpertLoad {
 public:
  /// `device`: where the layers compute; no host waits for what is added.
  ExpertLoad(int64_t num_layers, int64_t num_experts, at::Device device = at::kCPU);

  /// What layer number `layer` has chosen: counts_E of its real rows by expert, and where given the
  /// sums of their scores, fp64.
  void add(int64_t layer, const at::Tensor& counts_E, const at::Tensor& scores_E);

  /// How many rows went to each expert; zeros for layers without. fp64, [L, E].
  const at::Tensor& counts_LE() const { return counts_LE_; }
  /// Sums over all layers and real rows of the routers' scores. fp64, [E].
  const at::Tensor& scores_E() const { return scores_E_; }
  void clear();

  /// Whether sums of scores are wanted.
  bool sums_scores = false;
  /// d loss / d score of any real row of any layer, fp64, [E]; undefined: none. Read by backwards.
  at::Tensor gradient_E;

 private:
  at::Tensor counts_LE_, scores_E_;
};

}  // namespace longspan
