// Bytes that sequence parallelism sends, by formula. No torch.
#pragma once

#include <cstdint>

#include "longspan/data/packing.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

/// A layer's attention and the width of its numbers.
struct AttentionShape {
  AttentionShape(const AttentionSpec& spec, int64_t element_bytes = 4, int64_t gradient_bytes = 4)
      : spec(spec), element_bytes(element_bytes), gradient_bytes(gradient_bytes) {}

  AttentionSpec spec;
  int64_t element_bytes;   // 2 in bf16
  int64_t gradient_bytes;  // of kv gradients that travel a ring: fp32 for bf16

  /// Of one head of one token: a query or a key, a value or an output.
  int64_t key_bytes() const { return spec.key_dim * element_bytes; }
  int64_t value_bytes() const { return spec.value_dim * element_bytes; }
};

/// Do the numbers that keys and values are made of (AttentionSpec::latent_dim) travel in their
/// place? Round a ring and among U ranks that have 1 / U of the heads each: a rank wants all J
/// numbers of a token then, or M (K + V) / U of its keys and values, so they do where U J is less
/// than M (K + V). Not in a sliding window, where each rank fetches a few keys, nor where heads are
/// exchanged in waves, each of which would want the latents.
bool passes_latents(const AttentionSpec& spec, int ulysses_size, int head_waves);

/// Sent to OTHER ranks by all ranks of a sequence group together, for one layer.
///
/// With one kv head for each query head this is P times table 1 of Plug & Play SP, which counts one
/// rank's bytes in units of T d as if a rank sent to itself too: its 8 / P of Ulysses is 8 (P - 1)
/// / P^2 here, its 4 of a ring is 6 (P - 1) / P: the gradients of keys and values travel as well.
struct AttentionVolume {
  int64_t forward = 0, backward = 0;
};

/// The two kinds of exchange that a method is composed of.
struct AttentionVolumeParts {
  AttentionVolume heads;    // all-to-all of heads, and gathers of their slices
  AttentionVolume context;  // keys and values that travel, or are gathered, and their gradients
};

/// `padded` is the row as TokenOrder::packing has it. With checkpointing the backward sends again
/// what the forward's exchange of heads has sent; travelling keys are not needed to replay. With
/// head waves it repeats the outputs only, since a backward in waves exchanges queries, keys and
/// values once more in any case. It repeats no outputs where they were saved
/// (SavedAttention::output_is_known).
AttentionVolume attention_volume(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded, bool checkpointing = false,
                                 bool output_is_known = false);
AttentionVolumeParts attention_volume_parts(const ParallelPlan& plan, const AttentionShape& shape,
                                            const Packing& padded, bool checkpointing = false,
                                            bool output_is_known = false);

}  // namespace longspan
