// Token embeddings.
// T: tokens, D: model dim, V: vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

/// weight_VD[tokens_T] in `dtype`. The gradient is added to the rows of weight.grad; a dense one is
/// made only if there is none yet.
at::Tensor embed(const at::Tensor& weight_VD, const at::Tensor& tokens_T, at::ScalarType dtype);

}  // namespace longspan
