// Flash attention on the CPU in fp32: the driver, which calls the tile code (flash_tasks.h). T:
// query tokens, S: key tokens, N: query heads, M: kv heads, H: elements of a head.
#pragma once

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/flash/flash_tasks.h"

namespace longspan::flash {

/// True if the dtype is fp32, the device is a CPU, and both head dims are multiples of 16.
bool supports(const at::Tensor& q_TNH, const at::Tensor& v_SMH);

/// Returns the tile code for cpu_capability(): the widest instruction set of this processor, or a
/// narrower set that the environment requests.
const Tiles& best_tiles();

/// Same contract as BlockKernel::forward_round(). Reads scale and softcap of the spec; the blocks
/// contain the window.
AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                        const AttentionSpec& spec, const std::vector<Block>& blocks,
                        const Tiles& tiles = best_tiles());

/// Same contract as BlockKernel::backward_blocks().
AttentionGradients backward(const AttentionGradientInputs& inputs, const AttentionSpec& spec,
                            const std::vector<Block>& blocks, const Tiles& tiles = best_tiles());

}  // namespace longspan::flash
