// What a layer's token mixer sends and holds where ranks share a row: by the softmax attention and
// the recurrence that its spec says are in it. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_memory.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Bytes of one layer, of all ranks that share the row together: attention_volume() and
/// recurrent_volume(), whose arguments these are.
AttentionVolume mixer_volume(const ParallelPlan& plan, const TokenMixerSpec& mixer,
                             const Packing& padded, int64_t element_bytes, bool checkpointing,
                             bool output_is_known);

/// What one layer adds to a rank's memory: attention_memory() and recurrent_memory().
AttentionMemory mixer_memory(const ParallelPlan& plan, const TokenMixerSpec& mixer,
                             const Packing& padded, int64_t element_bytes);

}  // namespace longspan
