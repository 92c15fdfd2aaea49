// GatedDeltaNet (spec/gated_delta_net_spec.h): a convolution over neighbours, then a recurrence. T:
// tokens, C: some tokens, D: model dim, M: key heads, N: value heads, K, V: numbers in a head of
// keys and of values, J: channels, 2 M K + N V.
#pragma once

#include <memory>
#include <vector>

#include "longspan/layers/layer_weights.h"
#include "longspan/layers/projected_mixer.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

class GatedDeltaNet : public ProjectedMixer {
 public:
  struct Weights {
    /// In the order of GatedDeltaNetSpec::Projections: qkv, z, b, a; or qkvz, ba.
    std::vector<Linear> in_proj;
    Linear out_proj;
    at::Tensor conv1d_J1W, a_log_N, dt_bias_N, norm_V;
  };
  GatedDeltaNet(const GatedDeltaNetSpec& spec, Weights weights, double norm_eps);

  std::unique_ptr<TokenMixer> clone() const override;
  std::vector<Linear*> linears_before() override;
  std::vector<at::Tensor> parameters_before() const override;

  int num_inputs() const override { return static_cast<int>(weights_.in_proj.size()); }
  int64_t width() const override;
  at::Tensor empty_input(int i, int64_t num_rows, const at::TensorOptions& options) const override;
  at::Tensor input(int i, at::Tensor room, const InputRows& x, SavedStep* saved) const override;
  void input_backward(int i, const at::Tensor& dinput_C, const InputRows& x, const SavedStep* saved,
                      at::Tensor* dx_CD) const override;
  at::Tensor mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const override;
  bool mixes_by_attention_alone() const override {
    return longspan::mixes_by_attention_alone(spec_);
  }
  at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const override;

  /// The mixing without the norm after it: the convolution and the recurrence, for all tokens of
  /// this process and all heads. `x_TJ`, `a_TN`, `b_TN`: outputs of the projections. Returns [T, N,
  /// V]. Needs no projections in Weights. Differentiable as mix().
  at::Tensor over_row(const at::Tensor& x_TJ, const at::Tensor& a_TN, const at::Tensor& b_TN,
                      const RowContext& row) const;

 private:
  /// Outputs of the projections, whatever the layout in files.
  struct Parts {
    at::Tensor x_TJ, z_TNV, b_TN, a_TN;
  };
  Parts parts_of(const std::vector<at::Tensor>& inputs) const;

  GatedDeltaNetSpec spec_;
  Weights weights_;
  double norm_eps_;
};

std::shared_ptr<const TokenMixer> make_token_mixer(const GatedDeltaNetSpec& spec,
                                                   const ModelSpec& model,
                                                   const LayerWeights& weights);

}  // namespace longspan
