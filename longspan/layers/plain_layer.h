// Token mixers and feed-forwards that consist of their plain version: ATen operations with
// autograd's gradients. A new kind of layer begins as one of these classes. The layer trains with
// checkpointing, chunks and all other features before it has faster steps and a backward by hand.
// T: tokens, C: some tokens, D: model dim.
//
// A new kind derives from one of the classes below, and implements clone(), the lists of linear
// layers and of other parameters, and plain(). plain() applies linear layers by plain_linear()
// (plain_steps.h), and reads other parameters by as_input() (kernels/linear.h) in each call.
// Gradients are therefore summed in the run's dtype, and parameters may be sharded or offloaded
// between calls.
#pragma once

#include <memory>
#include <vector>

#include "longspan/layers/layer.h"
#include "longspan/spec/layer_cost.h"

namespace longspan {

/// A mixer with x as its only input and plain() as mix(). plain() sees other tokens through
/// RowContext::attention, or through WholeRow::over_heads() of RowContext::whole_row. In
/// generation, plain() sees earlier tokens through RowContext::memory. Checkpointing saves the
/// attention's results, and the backward recomputes plain() around them. So plain() must call
/// attention equally often in each call. The mixer's spec must return false from
/// mixes_by_attention_alone().
class PlainMixer : public TokenMixer {
 public:
  /// In the order of their numbers in LoRA's dropout.
  virtual std::vector<Linear*> linears() = 0;
  /// Parameters outside linear layers. Some may be undefined.
  virtual std::vector<at::Tensor> other_parameters() const { return {}; }

  std::vector<Linear*> linears_before() override { return linears(); }
  std::vector<Linear*> linears_after() override { return {}; }
  std::vector<at::Tensor> parameters_before() const override;
  std::vector<at::Tensor> parameters_after() const override { return {}; }
  int num_inputs() const override { return 1; }
  int64_t width() const override { return hidden_size_; }
  at::Tensor empty_input(int i, int64_t num_rows, const at::TensorOptions& options) const override;
  at::Tensor input(int i, at::Tensor room, const InputRows& x, SavedStep* saved) const override;
  void input_backward(int i, const at::Tensor& dinput_C, const InputRows& x, const SavedStep* saved,
                      at::Tensor* dx_CD) const override;
  at::Tensor mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const override;
  bool mixes_by_attention_alone() const override { return false; }
  void output_out(at::Tensor sum_CD, const at::Tensor& h_CD, const at::Tensor& mixed_C,
                  const RowRange& rows) const override;
  void output_backward(const at::Tensor& dsum_CD, const at::Tensor& mixed_C, const RowRange& rows,
                       at::Tensor dmixed_C) const override;

 protected:
  explicit PlainMixer(int64_t hidden_size) : hidden_size_(hidden_size) {}

 private:
  int64_t hidden_size_;
};

/// A feed-forward that saves nothing: the backward recomputes plain(), one chunk of rows at a time.
/// So plain()'s output for a row must not depend on the other rows.
class PlainFeedForward : public FeedForward {
 public:
  // linears(): see FeedForward.
  /// Parameters outside linear layers. Some may be undefined.
  virtual std::vector<at::Tensor> other_parameters() const { return {}; }

  std::vector<Linear*> linears_of_all_rows() override { return {}; }
  std::vector<at::Tensor> parameters() const override;
  int64_t width() const override { return cost_.width; }
  int64_t min_chunk_rows() const override { return cost_.min_chunk_rows; }
  bool takes_all_rows_at_once() const override { return false; }
  SavedStep empty_saved(int64_t num_rows, const at::TensorOptions& options) const override;
  at::Tensor forward_room(int64_t num_rows, bool saved,
                          const at::TensorOptions& options) const override;
  at::Tensor backward_room(int64_t num_rows, bool saved,
                           const at::TensorOptions& options) const override;
  void forward_out(at::Tensor out_CD, const at::Tensor& h_CD, const InputRows& x,
                   const SavedStep& saved, SharedChoice& choice,
                   const at::Tensor& room) const override;
  at::Tensor backward(const at::Tensor& dout_CD, const InputRows& x, const SavedStep& saved,
                      const SharedChoice& choice, const at::Tensor& room) const override;

 protected:
  /// `cost`: the cost of the layer's spec, with the layer's width.
  explicit PlainFeedForward(const FeedForwardCost& cost) : cost_(cost) {}

 private:
  /// Returns plain(x) in the dtype of x, with the linear layers' dropout for these rows.
  at::Tensor of_rows(const at::Tensor& x_CD, const RowRange& rows) const;

  FeedForwardCost cost_;
};

}  // namespace longspan
