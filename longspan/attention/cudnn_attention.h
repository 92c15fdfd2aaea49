// cuDNN's attention, as ATen has it: on an H100 1.7 times as fast as ATen's flash attention
// (docs/gpu-measurements.md).
#pragma once

#include <string>

#include "longspan/attention/block_kernel.h"

namespace longspan::cudnn {

/// Whether it computes these blocks, and faster. It takes one block at a time, makes a plan for
/// each new length, which takes a tenth of a second, and adds up its gradients in an order that
/// changes from run to run: so it is for long blocks, and not where the same bits are asked for.
bool suits(const at::Tensor& q_TNH, const AttentionSpec& spec, const std::vector<Block>& blocks);

/// Nothing suits it from now on: it has refused what it was expected to compute. Warns once.
void give_up(const std::string& reason);

/// As BlockKernel::forward_round, of what it suits. Throws c10::Error where cuDNN refuses.
AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                        const AttentionSpec& spec, const std::vector<Block>& blocks);

/// As BlockKernel::backward_blocks, of what it suits.
AttentionGradients backward(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                            const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                            const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                            const AttentionSpec& spec, const std::vector<Block>& blocks);

}  // namespace longspan::cudnn
