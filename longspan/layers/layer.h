// A layer of the decoder: h + mixer(norm(h)), then h + feed_forward(norm(h)). Either output may go
// through one more norm before it is added (output_norm.h). A kind of layer is a TokenMixer or a
// FeedForward in its own file. Checkpointing, chunks, adapters and overlap with exchanges are
// written once over these interfaces. T: tokens, C: some consecutive tokens, L: wanted rows of the
// output, D: model dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/kernels/rope.h"
#include "longspan/layers/expert_load.h"
#include "longspan/layers/output_norm.h"
#include "longspan/memory/activation_store.h"

namespace longspan {

/// The context that all layers of a row share.
struct RowContext {
  Attention* attention;
  Packing packing;
  std::vector<RotaryTable> rotary;  // one for each rotary_kinds_of() the model
  at::ScalarType compute_dtype;
  int64_t mlp_tiles = 0;             // parts of the row for each feed-forward; 0: by size
  ActivationStore* store = nullptr;  // for tensors that checkpoints save; null: on the device
  /// For mixers that go over whole rows. Null: this process holds all tokens, in order.
  std::shared_ptr<const WholeRow> whole_row = nullptr;
  RecurrentMemory* memory = nullptr;  // Attention::memory()
  ExpertLoad* expert_load = nullptr;  // counts of mixtures of experts; null: not counted
  at::Tensor is_real_T = {};  // bool: rows of the feed-forward that are no padding; undefined: all
  bool on_gpu = false;        // whether a GPU's sizes apply (spec/device_sizes.h)
  AttentionCheckpoint checkpoint = {};  // saves or replays the results of attention
};

/// Rows [begin, begin + size) of the rows that a layer works on.
struct RowRange {
  int64_t begin, size;
};

/// Some rows of a layer's x = norm(h), as the layer's steps take them.
struct InputRows {
  at::Tensor x_CD;
  RowRange rows;
  const RowContext& row;
};

/// Tensors that a step of a layer saves for its own backward.
using SavedStep = std::vector<at::Tensor>;

/// A feed-forward's choice for some rows, such as the experts of each row. The recomputation of
/// these rows reuses the choice. Therefore the recomputation uses the same experts, and the host
/// does not wait for the choice again. Only the feed-forward knows the choice's contents.
class RowChoice {
 public:
  virtual ~RowChoice() = default;
};
using SharedChoice = std::shared_ptr<const RowChoice>;

/// Mixes the tokens of a row, given x = norm(h). The mixer's steps before and after the mixing
/// compute each token by itself. These steps are outside autograd. The backward of a step is a
/// separate function, which adds gradients of parameters to .grad, and works on any range of the
/// row's tokens.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;
  /// Returns a copy that shares the parameters. The copy's linear layers can be replaced.
  virtual std::unique_ptr<TokenMixer> clone() const = 0;

  /// The linear layers before and after the mixing, in the order of their numbers in LoRA's
  /// dropout.
  virtual std::vector<Linear*> linears_before() = 0;
  virtual std::vector<Linear*> linears_after() = 0;
  /// All parameters before and after the mixing. Some may be undefined.
  virtual std::vector<at::Tensor> parameters_before() const = 0;
  virtual std::vector<at::Tensor> parameters_after() const = 0;

  /// The number of tensors that are mixed. Self-attention has three: queries, keys and values.
  virtual int num_inputs() const = 0;
  /// Elements per row of the widest input.
  virtual int64_t width() const = 0;
  /// Returns memory for input i of `num_rows` rows.
  virtual at::Tensor empty_input(int i, int64_t num_rows,
                                 const at::TensorOptions& options) const = 0;
  /// Computes input i of these rows into `room`, and returns `room`. If `saved` is not null, stores
  /// there the tensors that input_backward() would recompute; the result may then be another tensor
  /// than `room`.
  virtual at::Tensor input(int i, at::Tensor room, const InputRows& x, SavedStep* saved) const = 0;
  /// Takes d loss / d input i of these rows. Adds d loss / d x to dx_CD (null: not computed;
  /// undefined: created). `saved`: from input(), or null.
  virtual void input_backward(int i, const at::Tensor& dinput_C, const InputRows& x,
                              const SavedStep* saved, at::Tensor* dx_CD) const = 0;

  /// Mixes all inputs of all rows and returns [T, ...]. Differentiable by autograd.
  virtual at::Tensor mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const = 0;

  /// Whether mix() returns the output of row.attention unchanged. A backward that has saved this
  /// output then replays the mixing only for its gradients (SavedAttention::output_is_known).
  virtual bool mixes_by_attention_alone() const = 0;

  /// Writes h + the output of the mixed rows into sum_CD, which may be h_CD.
  virtual void output_out(at::Tensor sum_CD, const at::Tensor& h_CD, const at::Tensor& mixed_C,
                          const RowRange& rows) const = 0;
  /// Takes d loss / d sum in the dtype of computation. Writes d loss / d mixed into dmixed_C where
  /// dmixed_C is defined.
  virtual void output_backward(const at::Tensor& dsum_CD, const at::Tensor& mixed_C,
                               const RowRange& rows, at::Tensor dmixed_C) const = 0;

  /// The data for an attention that overlaps projections with exchanges, some heads at a time
  /// (Attention::project_and_attend). The mixer's inputs must be queries, keys and values. `linear`
  /// must be the mixer's whole last step.
  struct Overlap {
    AttentionSpec attention;
    const Linear* linear;
    at::Tensor sinks_N;  // a parameter; undefined: none
  };
  /// Returns nullopt for a mixer without this form.
  virtual std::optional<Overlap> overlap() const { return std::nullopt; }

  /// Returns the mixer's output before it is added to h, [T, D], by a few ATen operations with
  /// autograd's gradients (plain_steps.h). Tests compare the other functions with plain(). A new
  /// kind of layer may consist of plain() alone (plain_layer.h). If plain() uses neither the row's
  /// attention nor its whole row, the layer works on one process only.
  virtual at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const = 0;
};

/// Computes each token by itself, given x = norm(h). Outside autograd, like the steps of a
/// TokenMixer.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  virtual std::unique_ptr<FeedForward> clone() const = 0;

  /// In the order of their numbers in LoRA's dropout.
  virtual std::vector<Linear*> linears() = 0;
  /// The linear layers that are cast to the dtype of computation once for all chunks.
  virtual std::vector<Linear*> linears_of_all_rows() = 0;
  /// Casts other matrices once for all chunks of `num_rows` rows, where the cast saves time.
  /// `options`: the rows', with the dtype of computation. Called on a clone, for one pass.
  virtual void cast_for_pass(int64_t /*num_rows*/, const at::TensorOptions& /*options*/) {}
  virtual std::vector<at::Tensor> parameters() const = 0;

  /// Elements per row of the widest activation.
  virtual int64_t width() const = 0;
  /// The width by which the size of chunks is chosen.
  virtual int64_t chunk_width(const RowContext& /*row*/) const { return width(); }
  /// The fewest rows of a chunk.
  virtual int64_t min_chunk_rows() const = 0;
  /// True if each pass over a row is one chunk with all rows, even if there are no rows, because
  /// other processes take part in the pass (expert_exchange.h).
  virtual bool takes_all_rows_at_once() const = 0;
  /// Returns memory for the tensors that the backward of `num_rows` rows needs. Row r of each
  /// tensor belongs to row r.
  virtual SavedStep empty_saved(int64_t num_rows, const at::TensorOptions& options) const = 0;
  /// Return working memory for chunks of up to `num_rows` rows. `saved`: the tensors of
  /// empty_saved() exist, which the forward fills and the backward reads.
  virtual at::Tensor forward_room(int64_t num_rows, bool saved,
                                  const at::TensorOptions& options) const = 0;
  virtual at::Tensor backward_room(int64_t num_rows, bool saved,
                                   const at::TensorOptions& options) const = 0;

  /// Writes h + the output for x into out_CD, which may be h_CD. `saved`: the rows' part of
  /// empty_saved(), or empty. `choice`: from an earlier forward of these rows; null: set to the new
  /// choice, if there is one.
  virtual void forward_out(at::Tensor out_CD, const at::Tensor& h_CD, const InputRows& x,
                           const SavedStep& saved, SharedChoice& choice,
                           const at::Tensor& room) const = 0;
  /// Returns d loss / d x. dout_CD is in the dtype of computation. Overwrites saved tensors;
  /// recomputes unsaved tensors. `choice`: the forward's choice; null where the forward made no
  /// choice, or without rows.
  virtual at::Tensor backward(const at::Tensor& dout_CD, const InputRows& x, const SavedStep& saved,
                              const SharedChoice& choice, const at::Tensor& room) const = 0;

  /// Returns the output before it is added to h, as TokenMixer::plain() does.
  virtual at::Tensor plain(const at::Tensor& x_TD) const = 0;
};

struct Layer {
  at::Tensor mixer_norm_D, feed_forward_norm_D;  // weights of the RMSNorms
  NormKind norm_kind;
  double norm_eps;
  std::shared_ptr<const TokenMixer> mixer;
  std::shared_ptr<const FeedForward> feed_forward;
  /// Weights of the norms after the mixer and the feed-forward; undefined: none.
  at::Tensor mixer_output_norm_D = {}, feed_forward_output_norm_D = {};
  /// True: checkpointing keeps the tensors that the feed-forward saves, in place of recomputing
  /// these tensors.
  bool keeps_feed_forward = false;
  bool has_magnitudes = false;  // layers/adapters.h

  /// The factors of the norms.
  at::Tensor mixer_norm_factors() const { return norm_factors(mixer_norm_D, norm_kind); }
  at::Tensor feed_forward_norm_factors() const {
    return norm_factors(feed_forward_norm_D, norm_kind);
  }
  OutputNorm mixer_output_norm() const { return {mixer_output_norm_D, norm_kind, norm_eps}; }
  OutputNorm feed_forward_output_norm() const {
    return {feed_forward_output_norm_D, norm_kind, norm_eps};
  }
  /// The parameters of each sublayer, with the weights of its norms.
  std::vector<at::Tensor> mixer_parameters() const;
  std::vector<at::Tensor> feed_forward_parameters() const;
};

/// Appends weight, bias and adapters of these linear layers.
void append_parameters(std::vector<at::Tensor>& parameters,
                       const std::vector<const Linear*>& linears);

/// Runs the layer on a row: on all tokens, or for the rows `rows_L` where defined. Saves everything
/// that the backward needs.
at::Tensor run_layer(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                     const at::Tensor& rows_L);

/// As run_layer(), with gradient checkpointing: saves h and the attention's out and lse, on the
/// device or in the row's store. The backward recomputes everything except the attention, and
/// recomputes the part after the attention one chunk at a time. Tensors that a layer keeps for its
/// feed-forward stay on the device. The backward overwrites d loss / d output where no other code
/// owns that tensor.
at::Tensor run_checkpointed(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                            const at::Tensor& rows_L);

/// As run_layer(), by the plain versions of the layer's parts.
at::Tensor run_plainly(const at::Tensor& h_TD, const Layer& layer, const RowContext& row,
                       const at::Tensor& rows_L);

}  // namespace longspan
