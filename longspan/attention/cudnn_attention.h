// cuDNN's attention, called through ATen. On an H100 cuDNN's attention is 1.7 times as fast as
// ATen's flash attention (docs/gpu-measurements.md).
#pragma once

#include <string>

#include "longspan/attention/block_kernel.h"

namespace longspan::cudnn {

/// True if cuDNN can compute these blocks, and is faster than ATen's flash attention. cuDNN
/// computes one block per call, and makes a plan for each new length in about 0.1 s. cuDNN is
/// therefore used for long blocks only. cuDNN's gradients are not bit-reproducible, so suits() is
/// false in deterministic runs.
bool suits(const at::Tensor& q_TNH, const AttentionSpec& spec, const std::vector<Block>& blocks);

/// Makes suits() return false from now on, after cuDNN refused a call that suits() had accepted.
/// Warns once.
void give_up(const std::string& reason);

/// Same contract as BlockKernel::forward_round(), for blocks that suits() accepts. Throws
/// c10::Error if cuDNN refuses the call.
AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                        const AttentionSpec& spec, const std::vector<Block>& blocks);

/// Same contract as BlockKernel::backward_blocks(), for blocks that suits() accepts.
AttentionGradients backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                            const std::vector<Block>& blocks);

}  // namespace longspan::cudnn
