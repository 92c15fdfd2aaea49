// Softmax attention over heads of queries, keys and values (spec/self_attention_spec.h). T: tokens,
// C: some tokens, D: model dim, N: query heads, M: kv heads, K: elements of a head of queries or
// keys, V: elements of a head of values, outputs or gates, J: elements of a head of input 0.
#pragma once

#include <memory>

#include "longspan/layers/layer_weights.h"
#include "longspan/layers/projected_mixer.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

class SelfAttention : public ProjectedMixer {
 public:
  struct Weights {
    Linear q_proj, k_proj, v_proj, o_proj;
    at::Tensor q_norm_K, k_norm_K;  // undefined: no norms
    at::Tensor sinks_N = {};        // undefined: no sinks
  };
  /// For the norms of queries and keys.
  struct Norm {
    NormKind kind;
    double eps;
  };
  /// `rotary`: the index of the mixer's rotation in RowContext::rotary; unused without a rotation.
  SelfAttention(const SelfAttentionSpec& spec, Weights weights, const Norm& norm, size_t rotary);

  std::unique_ptr<TokenMixer> clone() const override;
  std::vector<Linear*> linears_before() override;
  std::vector<at::Tensor> parameters_before() const override;

  int num_inputs() const override { return kNumInputs; }
  int64_t width() const override { return projection(0).num_heads * projection(0).row_dim(); }
  at::Tensor empty_input(int i, int64_t num_rows, const at::TensorOptions& options) const override;
  at::Tensor input(int i, at::Tensor room, const InputRows& x, SavedStep* saved) const override;
  void input_backward(int i, const at::Tensor& dinput_C, const InputRows& x, const SavedStep* saved,
                      at::Tensor* dx_CD) const override;
  at::Tensor mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const override;
  bool mixes_by_attention_alone() const override {
    return longspan::mixes_by_attention_alone(spec_);
  }
  std::optional<Overlap> overlap() const override;
  at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const override;

 private:
  static constexpr int kNumInputs = 3;  // queries with their gates, keys, values

  /// The projection that makes input i of x.
  struct Projection {
    const Linear& linear;
    const at::Tensor& norm_H;  // undefined: no norm
    bool is_rotated;
    int64_t num_heads, head_dim, gate_dim;  // numbers of a head, and of the gate after it

    int64_t row_dim() const { return head_dim + gate_dim; }
  };
  Projection projection(int i) const;
  /// Returns the projection's heads, normed and rotated: in place in `room`, or as a new tensor
  /// where `saved` keeps `room`.
  at::Tensor normed_and_rotated(const Projection& projection, at::Tensor room, const RowRange& rows,
                                const RowContext& row, SavedStep* saved) const;
  /// As normed_and_rotated(), for heads without gates, with norm, rotation, both or neither.
  at::Tensor normed_or_rotated(const Projection& projection, at::Tensor heads_CNH,
                               const RowRange& rows, const RowContext& row, SavedStep* saved) const;
  /// Returns the gradient of the projection's output from the gradient of its heads. Adds the norm
  /// weight's gradient.
  at::Tensor heads_backward(const Projection& projection, const at::Tensor& dheads_CNH,
                            const InputRows& x, const SavedStep* saved) const;

  SelfAttentionSpec spec_;
  Weights weights_;
  Norm norm_;
  size_t rotary_;
};

std::shared_ptr<const TokenMixer> make_token_mixer(const SelfAttentionSpec& spec,
                                                   const ModelSpec& model,
                                                   const LayerWeights& weights);

}  // namespace longspan
