// cuDNN's attention by way of ATen. On an H100 it is 1.7 times as fast as ATen's flash attention
// (docs/gpu-measurements.md).
#pragma once

#include <string>

#include "longspan/attention/block_kernel.h"

namespace longspan::cudnn {

/// True if cuDNN computes these blocks, and does so faster than ATen's flash attention. cuDNN takes
/// one block at a time and makes a plan for each new length, which takes a tenth of a second, so it
/// suits long blocks. Its gradients are not bit-reproducible, so it suits no deterministic run.
bool suits(const at::Tensor& q_TNH, const AttentionSpec& spec, const std::vector<Block>& blocks);

/// Makes suits() return false from now on, after cuDNN refused a call that suits() had accepted.
/// Warns once.
void give_up(const std::string& reason);

/// As BlockKernel::forward_round, for blocks that suits() accepts. Throws c10::Error where cuDNN
/// refuses.
AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                        const AttentionSpec& spec, const std::vector<Block>& blocks);

/// As BlockKernel::backward_blocks, for blocks that suits() accepts.
AttentionGradients backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                            const std::vector<Block>& blocks);

}  // namespace longspan::cudnn
