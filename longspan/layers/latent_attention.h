// Multi-head latent attention (spec/latent_attention_spec.h). T: tokens, C: some tokens, D: model
// dim, N: heads, K: elements of a head of queries or keys, V: elements of a head of values or
// outputs, Q: elements of the queries' latent, L: elements of the latent of keys and values, R:
// rotated elements of a head, J: L + R.
#pragma once

#include <memory>
#include <vector>

#include "longspan/layers/layer_weights.h"
#include "longspan/layers/projected_mixer.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// The mixer's inputs are queries, [T, N, K], and latents, [T, J]: the latent of keys and values
/// after its norm, and the key's rotated numbers. The mixing makes keys and values from latents, so
/// that an attention may exchange latents in place of keys and values (Attention::attend_latent).
class LatentAttention : public ProjectedMixer {
 public:
  struct Weights {
    Linear q_proj;              // for queries without a latent
    Linear q_a_proj, q_b_proj;  // for queries with a latent
    Linear kv_a_proj, kv_b_proj, o_proj;
    at::Tensor q_a_norm_Q, kv_a_norm_L;
  };
  /// `rotary`: the index of the mixer's rotation in RowContext::rotary.
  LatentAttention(const LatentAttentionSpec& spec, Weights weights, NormKind norm_kind,
                  size_t rotary);

  std::unique_ptr<TokenMixer> clone() const override;
  std::vector<Linear*> linears_before() override;
  std::vector<at::Tensor> parameters_before() const override;

  int num_inputs() const override { return kNumInputs; }
  int64_t width() const override { return spec_.attention.num_heads * spec_.attention.key_dim; }
  at::Tensor empty_input(int i, int64_t num_rows, const at::TensorOptions& options) const override;
  at::Tensor input(int i, at::Tensor room, const InputRows& x, SavedStep* saved) const override;
  void input_backward(int i, const at::Tensor& dinput_C, const InputRows& x, const SavedStep* saved,
                      at::Tensor* dx_CD) const override;
  at::Tensor mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const override;
  bool mixes_by_attention_alone() const override {
    return longspan::mixes_by_attention_alone(spec_);
  }
  at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const override;

 private:
  static constexpr int kNumInputs = 2;

  /// A latent before and after its norm, with the tensor that the norm's backward needs.
  struct Normed {
    at::Tensor before_CL, rstd_C, after_CL;
  };
  Normed normed(at::Tensor x_CL, const at::Tensor& norm_L) const;
  /// Returns d loss / d before. Adds the gradient of the norm's weight.
  at::Tensor norm_backward_of(const at::Tensor& dafter_CL, const Normed& normed,
                              const at::Tensor& norm_L) const;
  /// Rotates the last R numbers of each head of queries or keys, in place.
  void rotate_last_(const at::Tensor& x_CNK, const RowRange& rows, const RowContext& row,
                    bool inverse) const;
  void query_backward(const at::Tensor& dq_CNK, const InputRows& x, const SavedStep* saved,
                      at::Tensor* dx_CD) const;
  void latent_backward(const at::Tensor& dlatent_CJ, const InputRows& x, const SavedStep* saved,
                       at::Tensor* dx_CD) const;

  LatentAttentionSpec spec_;
  Weights weights_;
  NormKind norm_kind_;
  size_t rotary_;
};

std::shared_ptr<const TokenMixer> make_token_mixer(const LatentAttentionSpec& spec,
                                                   const ModelSpec& model,
                                                   const LayerWeights& weights);

}  // namespace longspan
