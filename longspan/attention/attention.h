// What a model knows of attention. T: this rank's tokens, N: query heads, M: kv heads, H: numbers
// in a head: of queries and keys, or of values and outputs (AttentionSpec::key_dim, value_dim), J:
// AttentionSpec::latent_dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "longspan/data/packing.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

class LatentKeys;
class RecurrentMemory;
class WholeRow;

/// The projections around a layer's attention as functions, for an attention that overlaps its
/// exchanges with them. All are differentiable. The attention calls query, key, value and
/// begin_output once each, in this order, and then add_output for some heads at a time, until it
/// has added all heads.
struct AttentionProjections {
  std::function<at::Tensor()> query, key, value;  // -> q_TNH, k_TMH, v_TMH, rotated
  std::function<at::Tensor()> begin_output;       // -> y_TD, what the output is added to
  at::Tensor sinks_N = {};                        // where the layer has them
  /// y_TD + out_TnH W^T of those n heads; y is not used again by the caller.
  std::function<at::Tensor(const at::Tensor& y_TD, const at::Tensor& out_TnH,
                           const std::vector<int64_t>& heads)>
      add_output;
};

/// Causal attention within the documents of a packed row, for the tokens that this process holds.
/// Differentiable by ATen's autograd. N is a multiple of M (grouped-query attention: query head n
/// uses kv head n / (N / M)). The layer's AttentionSpec says what is computed. It describes
/// the whole layer, also where a strategy passes some of its heads alone: the shapes of the tensors
/// say how many.
class Attention {
 public:
  virtual ~Attention() = default;
  /// q_TNH, k_TMH, v_TMH (rotary embedding already applied) -> out_TNH, in the dtype of q. sinks_N:
  /// one a query head where the layer has them (AttentionSpec::has_sinks), the same on all
  /// processes, each of which gets the gradient of what it attends: they add up.
  virtual at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                            const at::Tensor& v_TMH, const AttentionSpec& spec,
                            const Packing& packing, const at::Tensor& sinks_N = {}) = 0;

  /// The same of keys and values that `keys` makes of x_TJ (latent_keys.h), which may travel in
  /// their place. For layers whose spec has a latent_dim, and no sinks.
  virtual at::Tensor attend_latent(const at::Tensor& q_TNH, const at::Tensor& x_TJ,
                                   const std::shared_ptr<const LatentKeys>& keys,
                                   const AttentionSpec& spec, const Packing& packing);

  /// Whether project_and_attend() is worth its smaller operations.
  virtual bool overlaps_projections() const { return false; }
  /// The projections, attend(), and the output projection -> y_TD.
  virtual at::Tensor project_and_attend(const AttentionProjections& projections,
                                        const AttentionSpec& spec, const Packing& packing);

  /// For layers that go over whole rows (spec/model_spec.h, goes_over_rows): where the tokens of
  /// this padded row are. Null: this process holds them all, in order. Throws where the attention
  /// cannot say.
  virtual std::shared_ptr<const WholeRow> whole_row(const Packing& packing) const;
  /// The states from which such layers continue the row's documents. Null: each document begins.
  virtual RecurrentMemory* memory() { return nullptr; }
};

}  // namespace longspan
