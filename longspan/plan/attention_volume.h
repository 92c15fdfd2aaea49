// Bytes that sequence parallelism sends, by formula. No torch.
#pragma once

#include <cstdint>

#include "longspan/data/packing.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// Heads of a layer and the width of their numbers.
struct AttentionShape {
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t element_bytes = 4;   // 2 in bf16
  int64_t gradient_bytes = 4;  // of kv gradients that travel a ring: fp32 for bf16
};

/// Sent to OTHER ranks by all ranks of a sequence group together, for one layer.
struct AttentionVolume {
  int64_t forward = 0, backward = 0;
};

/// `padded` is the row as TokenOrder::packing has it. With checkpointing the backward repeats what
/// the forward of the method sends.
AttentionVolume attention_volume(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded, bool checkpointing = false);

}  // namespace longspan
