// Block attention composed of a few ATen operations, a few queries at a time, in the accumulation
// dtype. Supports windows and softcaps, which ATen's flash attention does not support.
#pragma once

#include "longspan/attention/block_kernel.h"

namespace longspan::composed {

/// Same contract as BlockKernel::forward_round().
AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                        const AttentionSpec& spec, const std::vector<Block>& blocks);

/// Same contract as BlockKernel::backward_blocks().
AttentionGradients backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                            const std::vector<Block>& blocks);

}  // namespace longspan::composed
