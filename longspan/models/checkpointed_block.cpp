#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "longspan/attention/kept_attention.h"
#include "longspan/models/decoder_block.h"
#include "longspan/models/fused_op.h"

namespace longspan {

at::Tensor block(const at::Tensor& h_TD, const BlockWeights& weights, const RowContext& row,
                 const at::Tensor& rows_L) {
  return mlp_half(attention_half(h_TD, weights, row, rows_L), weights, row);
}

at::Tensor checkpointed_block(const at::Tensor& h_TD, const BlockWeights& weights,
                              const RowContext& row, const at::Tensor& rows_L) {
  auto parameters = weights.attention_parameters();
  for (auto& parameter : weights.mlp_parameters()) parameters.push_back(parameter);
  if (!needs_backward({h_TD}, parameters)) return block(h_TD, weights, row, rows_L);

  const auto kept = std::make_shared<KeptAttention>();
  at::Tensor out;
  {
    c10::NoGradGuard no_grad;
    const KeepScope keep(*kept);
    out = block(h_TD, weights, row, rows_L);
  }
  const auto backward = [h_TD = h_TD.detach(), wants_input = h_TD.requires_grad(), kept, weights,
                         row, rows_L](std::vector<at::Tensor> gradients) {
    const auto input_TD = h_TD.detach().requires_grad_(wants_input);
    at::Tensor middle;
    {
      const c10::AutoGradMode with_graph(true);
      const ReplayScope replay(*kept);
      middle = attention_half(input_TD, weights, row, rows_L);
    }
    // The MLP's output is not needed again, so its down projection is never recomputed.
    const auto dmiddle = mlp_half_backward(gradients[0], middle.detach(), {}, {}, weights, row);
    gradients.clear();
    if (middle.requires_grad()) torch::autograd::backward({middle}, {dmiddle});
    return std::vector<at::Tensor>{input_TD.grad()};
  };
  return attach_backward({out}, {h_TD}, parameters, backward)[0];
}

}  // namespace longspan
