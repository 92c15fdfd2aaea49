// A gated MLP (spec/gated_mlp_spec.h): down(activation(gate x, up x)) (arXiv 2002.05202).
// T: tokens, C: some tokens, D: model dim, I: intermediate dim.
#pragma once

#include <memory>

#include "longspan/layers/layer.h"
#include "longspan/layers/layer_weights.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

class GatedMlp : public FeedForward {
 public:
  struct Weights {
    Linear gate_proj, up_proj, down_proj;
  };
  GatedMlp(const GatedMlpSpec& spec, Weights weights);

  std::unique_ptr<FeedForward> clone() const override;
  std::vector<Linear*> linears() override;
  std::vector<Linear*> linears_of_all_rows() override { return linears(); }
  std::vector<at::Tensor> parameters() const override;
  int64_t width() const override { return spec_.intermediate_size; }
  int64_t min_chunk_rows() const override { return kMinChunkRows; }
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
  at::Tensor plain(const at::Tensor& x_TD) const override;

 private:
  GatedMlpSpec spec_;
  Weights weights_;
};

std::shared_ptr<const FeedForward> make_feed_forward(const GatedMlpSpec& spec,
                                                     const ModelSpec& model,
                                                     const LayerWeights& weights);

}  // namespace longspan
