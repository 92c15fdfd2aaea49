// The interface of attention that models call. T: tokens of this process, S: tokens of keys, N:
// query heads, M: kv heads, J: AttentionSpec::latent_dim, H: the head dim: AttentionSpec::key_dim
// for queries and keys, AttentionSpec::value_dim for values and outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "longspan/attention/saved_attention.h"
#include "longspan/rows/packing.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

class LatentKeys;
class RecurrentMemory;
class WholeRow;

/// The inputs of attention. Queries and keys are already rotated. sinks_N has one logit per query
/// head, and is defined if AttentionSpec::has_sinks is true.
struct AttentionInputs {
  at::Tensor q_TNH, k_SMH, v_SMH;
  at::Tensor sinks_N = {};
};

/// The projections around a layer's attention, as differentiable functions. An attention calls the
/// projections itself, to overlap its exchanges with the projections. The attention calls query,
/// key, value and begin_output once each, in this order. The attention then calls add_output for a
/// few heads at a time, until all heads are added.
struct AttentionProjections {
  std::function<at::Tensor()> query, key, value;  // return q_TNH, k_TMH, v_TMH, rotated
  std::function<at::Tensor()> begin_output;       // returns y_TD, to which outputs are added
  at::Tensor sinks_N = {};                        // undefined in layers without sinks
  /// Returns y_TD + out_TnH W^T for the n given heads. The caller does not use y_TD again.
  std::function<at::Tensor(const at::Tensor& y_TD, const at::Tensor& out_TnH,
                           const std::vector<int64_t>& heads)>
      add_output;
};

/// Causal attention within the documents of a packed row, for the tokens that this process holds.
/// Differentiable by ATen's autograd. N is a multiple of M: in grouped-query attention, query head
/// n uses kv head n / (N / M). The AttentionSpec gives the scale, window and other features, and
/// always describes the whole layer. A call may have only some of the layer's heads; the tensor
/// shapes show their number.
class Attention {
 public:
  virtual ~Attention() = default;
  /// Returns out_TNH in the dtype of q. Keys and values belong to the same T tokens as the queries.
  /// All processes pass the same sinks. Each process gets a partial gradient of the sinks; the sum
  /// over processes is the gradient. `checkpoint`: the call saves results, replays saved results,
  /// or does neither.
  virtual at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                            const Packing& packing, AttentionCheckpoint checkpoint = {}) = 0;

  /// Attends to the keys and values that `keys` computes from the latents x_TJ (latent_keys.h). An
  /// implementation may send x_TJ to other processes instead of keys and values. For layers whose
  /// spec has a latent_dim and no sinks.
  virtual at::Tensor attend_latent(const at::Tensor& q_TNH, const at::Tensor& x_TJ,
                                   const std::shared_ptr<const LatentKeys>& keys,
                                   const AttentionSpec& spec, const Packing& packing,
                                   AttentionCheckpoint checkpoint = {});

  /// True if project_and_attend() is faster than separate projections, despite the smaller
  /// operations of project_and_attend().
  virtual bool overlaps_projections() const { return false; }
  /// Computes the projections, attend() and the output projection. Returns y_TD.
  virtual at::Tensor project_and_attend(const AttentionProjections& projections,
                                        const AttentionSpec& spec, const Packing& packing,
                                        AttentionCheckpoint checkpoint = {});

  /// Returns the distribution of the padded row's tokens over processes, for layers that process
  /// whole rows (goes_over_rows() in spec/model_spec.h). Null: this process holds all tokens, in
  /// order. Throws std::logic_error if the attention does not implement whole rows.
  virtual std::shared_ptr<const WholeRow> whole_row(const Packing& packing) const;
  /// Returns the states from which recurrent layers continue the row's documents. Null: each
  /// document begins without a state.
  virtual RecurrentMemory* memory() { return nullptr; }
};

}  // namespace longspan
