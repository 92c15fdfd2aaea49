// Flash attention on the CPU in fp32: the driver over the tile code.
// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: numbers in a head.
#pragma once

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/flash/flash_tasks.h"

namespace longspan::flash {

/// fp32 on the CPU, head dims of keys and of values that are multiples of 16.
bool supports(const at::Tensor& q_TNH, const at::Tensor& v_SMH);

/// The tile code for cpu_capability(): the widest that this processor runs, unless the environment
/// asks for less.
const Tiles& best_tiles();

/// As BlockKernel::forward. Of the spec it asks for scale and softcap.
AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                        const AttentionSpec& spec, const std::vector<Block>& blocks,
                        const Tiles& tiles = best_tiles());

/// As BlockKernel::backward.
AttentionGradients backward(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                            const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                            const at::Tensor& out_TNH, const at::Tensor& lse_NT,
                            const AttentionSpec& spec, const std::vector<Block>& blocks,
                            const Tiles& tiles = best_tiles());

}  // namespace longspan::flash
