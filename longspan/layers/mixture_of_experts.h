// A mixture of experts (spec/mixture_of_experts_spec.h): each token goes through the gated MLPs of
// the experts that the router chooses, and through a shared expert. The router also weights the
// outputs of the chosen experts. T: tokens, C: some tokens, D: model dim, E: experts, K: experts of
// a token.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "longspan/layers/experts.h"
#include "longspan/layers/gated_mlp.h"
#include "longspan/layers/layer.h"
#include "longspan/layers/layer_weights.h"
#include "longspan/layers/router.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Saves only the choices. The backward recomputes the scores and the experts.
class MixtureOfExperts : public FeedForward {
 public:
  struct Weights {
    Router router;
    Experts experts;
    std::optional<GatedMlp> shared;
    Linear shared_gate;  // without weight where the shared expert has no gate
  };
  /// `layer`: the layer's number in RowContext::expert_load.
  MixtureOfExperts(const MixtureOfExpertsSpec& spec, int64_t hidden_size, int64_t layer,
                   Weights weights);

  std::unique_ptr<FeedForward> clone() const override;
  std::vector<Linear*> linears() override;
  std::vector<Linear*> linears_of_all_rows() override;
  void cast_for_pass(int64_t num_rows, const at::TensorOptions& options) override {
    weights_.experts.cast_for_pass(num_rows, options);
  }
  std::vector<at::Tensor> parameters() const override;
  int64_t width() const override { return cost_.width; }
  int64_t chunk_width(const RowContext& row) const override;
  int64_t min_chunk_rows() const override { return cost_.min_chunk_rows; }
  bool takes_all_rows_at_once() const override { return weights_.experts.are_exchanged(); }
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
  at::Tensor plain(const at::Tensor& x_TD) const override;

 private:
  RoutedRows routed(const at::Tensor& x_CD, const SharedChoice& choice) const;
  void count(const Routing& routing, const RowRange& rows, const RowContext& row) const;
  at::Tensor score_gradients(const Routing& routing, const RowRange& rows,
                             const RowContext& row) const;
  at::Tensor gated_shared_output(const InputRows& x) const;
  at::Tensor shared_output(const InputRows& x) const;
  void shared_backward(at::Tensor& dx_CD, const at::Tensor& dout_CD, const InputRows& x) const;

  MixtureOfExpertsSpec spec_;
  FeedForwardCost cost_;
  int64_t layer_;
  Weights weights_;
};

std::shared_ptr<const FeedForward> make_feed_forward(const MixtureOfExpertsSpec& spec,
                                                     const ModelSpec& model,
                                                     const LayerWeights& weights);

}  // namespace longspan
