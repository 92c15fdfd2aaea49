// Temporary memory of attention's kernels. No torch.
#pragma once

#include "longspan/account/layer_sizes.h"
#include "longspan/account/memory_model.h"

namespace longspan {

/// Returns the bytes of the buffers of the threads of attention's forward or backward on a CPU.
double attention_scratch(const MemoryFacts& facts, const TokenMixerCost& mixer);

/// Temporary bytes of a kernel in attention's backward.
struct AttentionRoom {
  double per_token = 0, fixed = 0;
};
AttentionRoom room_of_attention(const MemoryFacts& facts, const LayerSizes& s);

}  // namespace longspan
