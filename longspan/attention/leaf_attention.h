// Attention on one device as an autograd function: the innermost part of every method of sequence
// parallelism.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "longspan/attention/attention.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Returns out_TNH (attention.h) of one causal block for each document, within the layer's window.
at::Tensor leaf_attention(const BlockKernel& kernel, const AttentionInputs& inputs,
                          const AttentionSpec& spec, const Packing& packing,
                          AttentionCheckpoint checkpoint = {});
/// Returns out_TNH of the given blocks. The number of keys may differ from the number of queries.
at::Tensor leaf_attention(const BlockKernel& kernel, const AttentionInputs& inputs,
                          const AttentionSpec& spec, std::vector<Block> blocks,
                          AttentionCheckpoint checkpoint = {});

/// Returns the next saved result if the checkpoint replays, otherwise the result of compute().
/// Saves the result if the checkpoint saves. Every leaf attention calls this function.
AttentionResult saved_or_computed(AttentionCheckpoint checkpoint,
                                  const std::function<AttentionResult()>& compute);

}  // namespace longspan
