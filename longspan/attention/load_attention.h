// Loads attention kernels before a run needs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

/// Runs `kernel`, forward and backward, on a short block and, in rows that may have one, on a block
/// of a length from which cuDNN computes: libraries are then loaded, and a kernel that cannot be
/// used has been given up. `most_tokens`: of a row. Throws for a GPU without memory and for errors
/// of the GPU.
void load_attention(const BlockKernel& kernel, at::Device device, at::ScalarType dtype,
                    const std::vector<AttentionSpec>& specs, int64_t most_tokens);

}  // namespace longspan
