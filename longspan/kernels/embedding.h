// Token embeddings.
// T: tokens, D: model dim, V: vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace longspan {

/// Returns scale weight_VD[tokens_T] in `dtype`; the scale is rounded to the weight's dtype. Adds
/// the gradient to rows of weight.grad, which is created if missing. In bf16, the sum of a token's
/// gradients over the row is rounded once. The row of `padding_token` gets no gradient
/// (torch.nn.Embedding's padding_idx).
at::Tensor embed(const at::Tensor& weight_VD, const at::Tensor& tokens_T, at::ScalarType dtype,
                 std::optional<int64_t> padding_token, double scale = 1.0);

}  // namespace longspan
