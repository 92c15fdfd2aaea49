// Softmax attention over heads of queries, keys and values (spec/self_attention_spec.h).
// T: tokens, C: some of them, D: model dim, N: query heads, M: kv heads, K: numbers in a query's
// and a key's head, V: in a value's, an output's and its gate's, J: in a head of what input 0 has.
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
    at::Tensor q_norm_K, k_norm_K;  // undefined where there are none
    at::Tensor sinks_N = {};        // undefined where there are none
  };
  /// Of its norms.
  struct Norm {
    NormKind kind;
    double eps;
  };
  /// `rotary`: the number of its rotation in RowContext::rotary; not read where it has none.
  SelfAttention(const SelfAttentionSpec& spec, Weights weights, const Norm& norm, size_t rotary);

  std::unique_ptr<TokenMixer> clone() const override;
  std::vector<Linear*> linears_before() override;
  std::vector<at::Tensor> parameters_before() const override;

  int num_inputs() const override { return kNumInputs; }
  int64_t width() const override { return projection(0).num_heads * projection(0).row_dim(); }
  at::Tensor empty_input(int i, int64_t num_rows, const at::TensorOptions& options) const override;
  at::Tensor input(int i, at::Tensor room, const at::Tensor& x_CD, const RowRange& rows,
                   const RowContext& row, SavedStep* saved) const override;
  void input_backward(int i, const at::Tensor& dinput_C, const at::Tensor& x_CD,
                      const RowRange& rows, const RowContext& row, const SavedStep* saved,
                      at::Tensor* dx_CD) const override;
  at::Tensor mix(const std::vector<at::Tensor>& inputs, const RowContext& row) const override;
  bool mixes_by_attention_alone() const override {
    return longspan::mixes_by_attention_alone(spec_);
  }
  std::optional<Overlap> overlap() const override;
  at::Tensor plain(const at::Tensor& x_TD, const RowContext& row) const override;

 private:
  static constexpr int kNumInputs = 3;  // queries and their gates, keys, values

  /// What makes input i of x.
  struct Projection {
    const Linear& linear;
    const at::Tensor& norm_H;  // undefined: none
    bool is_rotated;
    int64_t num_heads, head_dim, gate_dim;  // each head's numbers, and of its gate behind them

    int64_t row_dim() const { return head_dim + gate_dim; }
  };
  Projection projection(int i) const;
  /// The room with its heads normed and rotated: in place, or, where the step saves the room as it
  /// was, anew.
  at::Tensor normed_and_rotated(const Projection& projection, at::Tensor room, const RowRange& rows,
                                const RowContext& row, SavedStep* saved) const;
  /// The same of heads, without gates, that have one of both or none.
  at::Tensor normed_or_rotated(const Projection& projection, at::Tensor heads_CNH,
                               const RowRange& rows, const RowContext& row, SavedStep* saved) const;
  /// The gradient of what the projection has made of x, from that of its heads; that of the norm's
  /// weight is added to it.
  at::Tensor heads_backward(const Projection& projection, const at::Tensor& dheads_CNH,
                            const at::Tensor& x_CD, const RowRange& rows, const RowContext& row,
                            const SavedStep* saved) const;

  SelfAttentionSpec spec_;
  Weights weights_;
  Norm norm_;
  size_t rotary_;
};

std::shared_ptr<const TokenMixer> make_token_mixer(const SelfAttentionSpec& spec,
                                                   const ModelSpec& model,
                                                   const LayerWeights& weights);

}  // namespace longspan
