// Flash attention on the CPU in fp32: the driver over the tile code.
// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: numbers in a head.
#pragma once

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/flash/flash_tasks.h"

namespace longspan::flash {

/// Whether the dtype is fp32, the device a CPU, and both head dims multiples of 16.
bool supports(const at::Tensor& q_TNH, const at::Tensor& v_SMH);

/// The tile code for cpu_capability(): the widest that this processor runs, or less where the
/// environment asks for less.
const Tiles& best_tiles();

/// As BlockKernel::forward_round. Reads scale and softcap of the spec; windows are in the blocks.
AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                        const AttentionSpec& spec, const std::vector<Block>& blocks,
                        const Tiles& tiles = best_tiles());

/// As BlockKernel::backward_blocks.
AttentionGradients backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                            const std::vector<Block>& blocks, const Tiles& tiles = best_tiles());

}  // namespace longspan::flash
