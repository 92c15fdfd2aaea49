// world -> data x ring x ulysses. No torch. All divisibility errors are found here, before anything
// is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

enum class SequenceParallelMode {
  kLocal,
  kUlysses,
  kDummyHeadUlysses,
  kXtunerUlysses,
  kAsyncUlysses,
  kBalancedUlysses,
  kRing,
  kStripedRing,
  kZigzagRing,
  kUsp,
  kLlama3,
  kLoongTrain,
};

/// The names of sequence_parallel_mode ("ulysses", "zigzag-ring", ...).
std::string name_of(SequenceParallelMode mode);
SequenceParallelMode sequence_parallel_mode_from(const std::string& name);  // throws UserError

struct ParallelPlan {
  int world_size = 1;
  int data_size = 1;      // data-parallel groups
  int sequence_size = 1;  // = ring_size * ulysses_size
  int ring_size = 1;
  int ulysses_size = 1;
  int window_size = 1;      // LoongTrain: ranks of an inner ring; divides ring_size
  int num_head_slices = 1;  // XTuner: ranks that hold a slice of each head, P / gcd(heads, P)
  int head_waves = 1;       // Ulysses kinds: parts in which a rank's heads are exchanged
  SequenceParallelMode mode = SequenceParallelMode::kLocal;
};

/// Can this mode split these heads over `sequence_size` ranks?
bool can_split(SequenceParallelMode mode, int sequence_size, int64_t num_heads,
               int64_t num_kv_heads);

/// The modes that can.
std::vector<SequenceParallelMode> modes_that_split(int sequence_size, int64_t num_heads,
                                                   int64_t num_kv_heads);

/// Throws UserError when sequence_size does not divide world_size, or when the mode cannot split
/// the heads (the message names the modes that can). Without a mode: ulysses where the heads
/// divide, else zigzag-ring.
ParallelPlan make_parallel_plan(int world_size, int sequence_size,
                                std::optional<SequenceParallelMode> mode, int64_t num_heads,
                                int64_t num_kv_heads);

}  // namespace longspan
