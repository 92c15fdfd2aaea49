// Loads attention kernels before a run needs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

/// A call of a kernel with one block.
struct AttentionOfBlock {
  int64_t num_heads, num_kv_heads;
  Block block;
};

/// A kind of attention in a run.
struct UsedAttention {
  AttentionSpec spec;
  int64_t most_tokens = 0;                         // of a row
  std::vector<AttentionOfBlock> of_longest_row{};  // a rank's calls
};

/// Runs `kernel`, forward and backward, on short blocks, causal and not: libraries are then loaded,
/// and a kernel that cannot be used has been given up. Also runs the blocks of cuDNN's shortest
/// length and those of the longest row, since cuDNN makes a plan for each length. Throws for a GPU
/// without memory and for errors of the GPU.
void load_attention(const BlockKernel& kernel, at::Device device, at::ScalarType dtype,
                    const std::vector<UsedAttention>& uses);

}  // namespace longspan
