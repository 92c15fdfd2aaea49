// Attention on one device as an autograd function: the innermost part of every strategy.
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
/// The same with given blocks. Keys and values may have another length than queries.
at::Tensor leaf_attention(const BlockKernel& kernel, const AttentionInputs& inputs,
                          const AttentionSpec& spec, std::vector<Block> blocks,
                          AttentionCheckpoint checkpoint = {});

/// Returns the next saved result where the checkpoint replays, else compute(). Saves the result
/// where the checkpoint saves. Every leaf attention calls it.
AttentionResult saved_or_computed(AttentionCheckpoint checkpoint,
                                  const std::function<AttentionResult()>& compute);

}  // namespace longspan
