// The update of AdamW8bit by one GPU kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/optim/moments_8bit.h"

namespace longspan::cuda_rows {

/// As update_8bit_on_cpu(), to the bits. Returns false, and changes nothing, where no kernel takes
/// the tensors: values and gradient are both fp32 or both bf16.
bool update_8bit(const Moments8bit& moments, const at::Tensor& gradient_n,
                 const at::Tensor& values_n, const Factors8bit& factors);

}  // namespace longspan::cuda_rows
