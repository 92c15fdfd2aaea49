// Token embeddings.
// T: tokens, D: model dim, V: vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace longspan {

/// scale weight_VD[tokens_T] in `dtype`; the scale is rounded to the dtype of the weight. The
/// gradient is added to the rows of weight.grad; a dense one is made only if there is none yet. A
/// bf16 one gets each token's sum over the row, rounded once. The row of `padding_token` gets none
/// (torch.nn.Embedding's padding_idx).
at::Tensor embed(const at::Tensor& weight_VD, const at::Tensor& tokens_T, at::ScalarType dtype,
                 std::optional<int64_t> padding_token, double scale = 1.0);

}  // namespace longspan
