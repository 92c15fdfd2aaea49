// Bytes that sequence parallelism sends, by formula. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"
#include "longspan/spec/attention_spec.h"

namespace longspan {

/// A layer's attention, the size of its elements, and the device of its tensors.
struct AttentionShape {
  AttentionShape(const AttentionSpec& spec, int64_t element_bytes = 4, int64_t gradient_bytes = 4)
      : spec(spec), element_bytes(element_bytes), gradient_bytes(gradient_bytes) {}

  AttentionSpec spec;
  int64_t element_bytes;   // 2 in bf16
  int64_t gradient_bytes;  // of kv gradients that travel around a ring; 4 for bf16
  bool cuda = false;       // on a GPU, where keys travel in one part (plan/ring_parts.h)

  /// Bytes of one head of one token: key_bytes() of a query or key, value_bytes() of a value or
  /// output.
  int64_t key_bytes() const { return spec.key_dim * element_bytes; }
  int64_t value_bytes() const { return spec.value_dim * element_bytes; }
};

/// True if latents (AttentionSpec::latent_dim) travel instead of keys and values: around a ring,
/// and in head exchanges of U ranks. In a head exchange, a rank needs J latent elements per token,
/// or M (K + V) / U elements of its heads' keys and values (M: kv heads, K, V: elements of a key
/// and of a value). Latents therefore travel if U J < M (K + V). Latents do not travel in a sliding
/// window, where each rank fetches few keys. Latents do not travel with head waves either, because
/// each wave would need the latents again.
bool passes_latents(const AttentionSpec& spec, int ulysses_size, int head_waves);

/// Bytes for one layer that all ranks of a sequence group together send to OTHER ranks.
///
/// With one kv head per query head, the volume is P times table 1 of Plug & Play SP. The table
/// counts one rank's bytes in units of T d, as if a rank also sent to itself. The table's 8 / P for
/// Ulysses becomes 8 (P - 1) / P^2 here. The table's 4 for a ring becomes 6 (P - 1) / P here,
/// because the gradients of keys and values also travel around the ring.
struct AttentionVolume {
  int64_t forward = 0, backward = 0;
};

/// The two kinds of exchange in a method.
struct AttentionVolumeParts {
  AttentionVolume heads;    // all-to-all of heads, and all-gather of their slices
  AttentionVolume context;  // keys and values that travel or are gathered, and their gradients
};

/// `padded`: the padded row (TokenOrder::packing). With checkpointing, the backward repeats the
/// head exchange of the forward. This repetition sends no keys or values around a ring. With head
/// waves, checkpointing repeats only the exchange of outputs, because a backward in waves exchanges
/// queries, keys and values once more in any case. Saved outputs (SavedAttention::output_is_known)
/// are not exchanged again.
AttentionVolume attention_volume(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded, bool checkpointing = false,
                                 bool output_is_known = false);
AttentionVolumeParts attention_volume_parts(const ParallelPlan& plan, const AttentionShape& shape,
                                            const Packing& padded, bool checkpointing = false,
                                            bool output_is_known = false);

}  // namespace longspan
