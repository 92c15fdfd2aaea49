// A layer of the decoder: h + mixer(norm(h)), then h + feed_forward(norm(h)), where either may go
// through one more norm before it is added (output_norm.h). A kind of layer is a
// TokenMixer or a FeedForward in a file of its own; checkpointing, chunks, adapters and overlap
// with exchanges are written once, over these interfaces. T: tokens, C: some consecutive ones of
// them, L: rows that are wanted from the layer, D: model dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/kernels/rope.h"
#include "longspan/layers/activation_store.h"
#include "longspan/layers/expert_load.h"
#include "longspan/layers/output_norm.h"

namespace longspan {

/// What all layers of a row share.
struct RowContext {
  Attention* attention;
  Packing packing;
  std::vector<RotaryTable> rotary;  // one for each rotary_kinds_of() the model
  at::ScalarType compute_dtype;
  int64_t mlp_tiles = 0;  // parts of the row in which each feed-forward is computed; 0: by size
  ActivationStore* store = nullptr;  // of what checkpointing saves; null: it stays on the device
  /// For mixers that go over whole rows. Null: this process holds all tokens, in the row's order.
  std::shared_ptr<const WholeRow> whole_row = nullptr;
  RecurrentMemory* memory = nullptr;  // Attention::memory()
  ExpertLoad* expert_load = nullptr;  // where mixtures of experts count; null: nowhere
  at::Tensor is_real_T = {};  // bool: of the rows of the feed-forward, those that are no padding;
                              // undefined: all
  bool on_gpu = false;        // works by a GPU's sizes (spec/device_sizes.h)
};

/// Rows [begin, begin + size) of those that a layer works on.
struct RowRange {
  int64_t begin, size;
};

/// What a step of a layer saves for its own backward.
using SavedStep = std::vector<at::Tensor>;

/// What a feed-forward has chosen for some rows, such as the experts of each. Who computes these
/// rows again goes by it: so both have chosen the same, and nobody waits twice to know what. Only
/// the feed-forward itself knows what is in it.
class RowChoice {
 public:
  virtual ~RowChoice() = default;
};
using SharedChoice = std::shared_ptr<const RowChoice>;

/// Mixes the tokens of a row, given x = norm(h): steps that compute each token by itself, the
/// mixing, and a last step that computes each token by itself. All but the mixing are outside of
/// autograd: their backward is a function of its own, which adds gradients of parameters to their
/// .grad, and works on any range of the row's tokens.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;
  /// A copy that shares the parameters; its linear layers can be replaced by others.
  virtual std::unique_ptr<TokenMixer> clone() const = 0;

  /// The linear layers before and after the mixing, in the order in which LoRA's dropout numbers
  /// them.
  virtual std::vector<Linear*> linears_before() = 0;
  virtual std::vector<Linear*> linears_after() = 0;
  /// All parameters before and after the mixing; some may be undefined.
  virtual std::vector<at::Tensor> parameters_before() const = 0;
  virtual std::vector<at::Tensor> parameters_after() const = 0;

  /// How many tensors are mixed: three, of queries, keys and values, in self-attention.
  virtual int num_inputs() const = 0;
  /// Numbers of a row in the widest of them.
  virtual int64_t width() const = 0;
  /// Memory for input i of so many rows.
  virtual at::Tensor empty_input(int i, int64_t num_rows,
                                 const at::TensorOptions& options) const = 0;
  /// Computes input i of x_CD, which are these rows, into `room`. Returns `room`; or, where `saved`
  /// takes what input_backward() would compute again, perhaps another tensor.
  virtual at::Tensor input(int i, at::Tensor room, const at::Tensor& x_CD, const RowRange& rows,
                           const RowContext& row, SavedStep* saved) const = 0;
  /// Takes d loss / d input i of these rows. Adds d loss / d x to dx_CD, which it makes where it is
  /// undefined; not where dx_CD is null. `saved`: of input(), or null.
  virtual void input_backward(int i, const at::Tensor& dinput_C, const at::Tensor& x_CD,
                              const RowRange& rows, const RowContext& row, const SavedStep* saved,
                              at::Tensor* dx_CD) const = 0;

  /// All inputs, of all rows -> [T, ...]. Differentiable by autograd.
  virtual at::Tensor mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const = 0;

  /// Does mix() return the output of row.attention unchanged? Then a backward that has saved this
  /// output replays the mixing for its gradients alone (SavedAttention::output_is_known).
  virtual bool mixes_by_attention_alone() const = 0;

  /// Writes h + what is made of the mixed rows into sum_CD, which may be h_CD.
  virtual void output_out(at::Tensor sum_CD, const at::Tensor& h_CD, const at::Tensor& mixed_C,
                          const RowRange& rows) const = 0;
  /// Takes d loss / d sum in the dtype of computation. Writes d loss / d mixed into dmixed_C where
  /// that is defined.
  virtual void output_backward(const at::Tensor& dsum_CD, const at::Tensor& mixed_C,
                               const RowRange& rows, at::Tensor dmixed_C) const = 0;

  /// For an attention that exchanges one input while the next is projected, and projects some heads
  /// while others are on their way (Attention::project_and_attend). The mixer's inputs are then
  /// queries, keys and values, and `linear` is all that its output does.
  struct Overlap {
    AttentionSpec attention;
    const Linear* linear;
    at::Tensor sinks_N;  // the parameter, where there are any
  };
  /// nullopt where the mixer computes something else.
  virtual std::optional<Overlap> overlap() const { return std::nullopt; }

  /// What is added to h, [T, D], in a few operations of ATen with autograd's own gradients
  /// (plain_steps.h): what tests compare the above with, and what a layer is that has nothing else
  /// (plain_layer.h). A version that does not mix by the row's attention or whole row is of one
  /// process alone.
  virtual at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const = 0;
};

/// Computes each token by itself, given x = norm(h). Outside of autograd, as the steps of a
/// TokenMixer.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  virtual std::unique_ptr<FeedForward> clone() const = 0;

  /// In the order in which LoRA's dropout numbers them.
  virtual std::vector<Linear*> linears() = 0;
  /// Those of them that are cast to the dtype of computation ahead, for all chunks.
  virtual std::vector<Linear*> linears_of_all_rows() = 0;
  virtual std::vector<at::Tensor> parameters() const = 0;

  /// Numbers of a row in its widest activation.
  virtual int64_t width() const = 0;
  /// By which its chunks are chosen.
  virtual int64_t chunk_width(const RowContext& /*row*/) const { return width(); }
  /// Its chunks are not cut below so many rows.
  virtual int64_t min_chunk_rows() const = 0;
  /// Whether each pass over a row is one chunk of all its rows, also where there are none: others
  /// take part in it (expert_exchange.h).
  virtual bool takes_all_rows_at_once() const = 0;
  /// Memory for what the backward of so many rows needs; row r of each tensor is that of row r.
  virtual SavedStep empty_saved(int64_t num_rows, const at::TensorOptions& options) const = 0;
  /// Memory to work in, for chunks of up to so many rows. `saved`: whether the forward saves, or
  /// the backward has, what empty_saved() is for.
  virtual at::Tensor forward_room(int64_t num_rows, bool saved,
                                  const at::TensorOptions& options) const = 0;
  virtual at::Tensor backward_room(int64_t num_rows, bool saved,
                                   const at::TensorOptions& options) const = 0;

  /// Writes h + what is made of x into out_CD, which may be h_CD. `saved`: the rows' part of
  /// empty_saved(), or empty. `choice`: that of an earlier forward of these rows; where it is null,
  /// and there is something to choose, becomes what was chosen.
  virtual void forward_out(at::Tensor out_CD, const at::Tensor& h_CD, const at::Tensor& x_CD,
                           const RowRange& rows, const RowContext& row, const SavedStep& saved,
                           SharedChoice& choice, const at::Tensor& room) const = 0;
  /// d loss / d out, in the dtype of computation -> d loss / d x. Overwrites what is saved; where
  /// nothing is saved, computes it again. `choice`: the forward's; null where nothing was to be
  /// chosen, or there are no rows.
  virtual at::Tensor backward(const at::Tensor& dout_CD, const at::Tensor& x_CD,
                              const RowRange& rows, const RowContext& row, const SavedStep& saved,
                              const SharedChoice& choice, const at::Tensor& room) const = 0;

  /// What is added to h, as TokenMixer::plain().
  virtual at::Tensor plain(const at::Tensor& x_TD) const = 0;
};

struct Layer {
  at::Tensor mixer_norm_D, feed_forward_norm_D;  // weights of the RMSNorms
  NormKind norm_kind;
  double norm_eps;
  std::shared_ptr<const TokenMixer> mixer;
  std::shared_ptr<const FeedForward> feed_forward;
  /// Weights of the norms behind the mixer and the feed-forward; undefined where there are none.
  at::Tensor mixer_output_norm_D = {}, feed_forward_output_norm_D = {};
  /// Checkpointing saves what the feed-forward saves, which is then not computed again.
  bool keeps_feed_forward = false;

  /// What the norms multiply by.
  at::Tensor mixer_norm_factors() const { return norm_factors(mixer_norm_D, norm_kind); }
  at::Tensor feed_forward_norm_factors() const {
    return norm_factors(feed_forward_norm_D, norm_kind);
  }
  OutputNorm mixer_output_norm() const { return {mixer_output_norm_D, norm_kind, norm_eps}; }
  OutputNorm feed_forward_output_norm() const {
    return {feed_forward_output_norm_D, norm_kind, norm_eps};
  }
  /// The parameters of each sublayer, its norms' among them.
  std::vector<at::Tensor> mixer_parameters() const;
  std::vector<at::Tensor> feed_forward_parameters() const;
};

/// Adds weight, bias and adapters of these layers to the list.
void append_parameters(std::vector<at::Tensor>& parameters,
                       const std::vector<const Linear*>& linears);

/// The layer on a row: of all its tokens, or of `rows_L` where defined. Saves all that the backward
/// needs.
at::Tensor run_layer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                     const at::Tensor& rows_L);

/// The same with gradient checkpointing: saves h and the attention's out and lse, on the device or
/// in the row's store. The backward recomputes the rest around the saved result, and what lies
/// between attention and the layer's output a chunk at a time. What a layer keeps of its
/// feed-forward stays on the device. d loss / d output is overwritten where nobody else holds it.
at::Tensor run_checkpointed(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                            const at::Tensor& rows_L);

/// The same by the plain versions of its parts.
at::Tensor run_plainly(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                       const at::Tensor& rows_L);

}  // namespace longspan
