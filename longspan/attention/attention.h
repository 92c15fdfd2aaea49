// Attention as models see it. T: tokens of this process, S: tokens of keys, N: query heads, M: kv
// heads, J: AttentionSpec::latent_dim, H: the head dim: AttentionSpec::key_dim for queries and
// keys, AttentionSpec::value_dim for values and outputs.
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

/// The inputs of attention. Queries and keys are already rotated. sinks_N has one
/// number per query head and is given where AttentionSpec::has_sinks.
struct AttentionInputs {
  at::Tensor q_TNH, k_SMH, v_SMH;
  at::Tensor sinks_N = {};
};

/// The projections around a layer's attention, as differentiable functions. An attention calls them
/// to overlap its exchanges with them. It calls query, key, value and begin_output once each, in
/// this order. Then it calls add_output for a few heads at a time, until all heads are added.
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
/// n uses kv head n / (N / M). The layer's AttentionSpec says what is computed. It always describes
/// the whole layer. A strategy may pass only some of the heads: tensor shapes give the number of
/// heads.
class Attention {
 public:
  virtual ~Attention() = default;
  /// Returns out_TNH in the dtype of q. Keys and values are of the same T tokens. All processes
  /// pass the same sinks. Each process gets a partial gradient of the sinks; the sum over processes
  /// is the gradient. The checkpoint says whether results are saved or replayed.
  virtual at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                            const Packing& packing, AttentionCheckpoint checkpoint = {}) = 0;

  /// Attends to keys and values that `keys` makes of x_TJ (latent_keys.h). An implementation may
  /// send x_TJ to other processes instead of keys and values. For layers whose spec has a
  /// latent_dim and no sinks.
  virtual at::Tensor attend_latent(const at::Tensor& q_TNH, const at::Tensor& x_TJ,
                                   const std::shared_ptr<const LatentKeys>& keys,
                                   const AttentionSpec& spec, const Packing& packing,
                                   AttentionCheckpoint checkpoint = {});

  /// Whether project_and_attend() is faster than separate projections, although its operations are
  /// smaller.
  virtual bool overlaps_projections() const { return false; }
  /// Returns y_TD: projections, attend() and the output projection.
  virtual at::Tensor project_and_attend(const AttentionProjections& projections,
                                        const AttentionSpec& spec, const Packing& packing,
                                        AttentionCheckpoint checkpoint = {});

  /// Returns the places of this padded row's tokens, for layers that go over whole rows
  /// (goes_over_rows() in spec/model_spec.h). Null: this process holds all tokens, in order. Throws
  /// std::logic_error where the attention does not implement it.
  virtual std::shared_ptr<const WholeRow> whole_row(const Packing& packing) const;
  /// The states from which recurrent layers continue the row's documents. Null: each document
  /// begins without a state.
  virtual RecurrentMemory* memory() { return nullptr; }
};

}  // namespace longspan
