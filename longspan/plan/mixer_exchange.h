// Bytes that a layer's token mixer sends and holds when ranks share a row, from the softmax
// attention and the recurrence in the mixer's spec. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_memory.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Returns the bytes that all ranks of the row send for one layer: the sum of attention_volume()
/// and recurrent_volume(). The arguments are those functions' arguments.
AttentionVolume mixer_volume(const ParallelPlan& plan, const TokenMixerSpec& mixer,
                             const Packing& padded, int64_t element_bytes, bool checkpointing,
                             bool output_is_known);

/// Returns the memory that one layer adds on a rank: the sum of attention_memory() and
/// recurrent_memory(). `cuda`: the ranks are GPUs.
AttentionMemory mixer_memory(const ParallelPlan& plan, const TokenMixerSpec& mixer,
                             const Packing& padded, int64_t element_bytes, bool cuda);

}  // namespace longspan
