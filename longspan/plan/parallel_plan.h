// world -> data x ring x ulysses. No torch. All divisibility errors are found here, before anything
// is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/data/packing.h"

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
const std::vector<SequenceParallelMode>& all_modes();  // without kLocal, simple ones first

/// Has it degrees (usp, loongtrain)? Can it exchange heads in waves?
bool has_degrees(SequenceParallelMode mode);
bool has_head_waves(SequenceParallelMode mode);

/// Of async-ulysses where none are asked for: with one wave, no exchange runs under attention.
constexpr int kAsyncHeadWaves = 2;

struct ParallelPlan {
  int world_size = 1;
  int data_size = 1;      // data-parallel groups
  int sequence_size = 1;  // = ring_size * ulysses_size
  int ring_size = 1;
  int ulysses_size = 1;
  int window_size = 1;      // LoongTrain: ranks of an inner ring; divides ring_size
  int num_head_slices = 1;  // XTuner: ranks that hold a slice of each head, P / gcd(heads, P)
  int head_waves = 1;       // Ulysses kinds: parts in which a rank's heads are exchanged
  /// Neighbours that divide one copy of the model's states among them (ZeRO); divides world_size.
  int shard_size = 1;
  SequenceParallelMode mode = SequenceParallelMode::kLocal;
  std::string reason;  // what was chosen and why, one line
};

/// "usp, ulysses 4 x ring 2", with windows where there are any, and waves unless they are those of
/// the mode by itself.
std::string describe_method(const ParallelPlan& plan);

/// Can this mode split these heads over `sequence_size` ranks? (XTuner cuts along head_dim too.)
bool can_split(SequenceParallelMode mode, int sequence_size, int64_t num_heads,
               int64_t num_kv_heads, int64_t head_dim = 64);

/// The modes that can.
std::vector<SequenceParallelMode> modes_that_split(int sequence_size, int64_t num_heads,
                                                   int64_t num_kv_heads, int64_t head_dim = 64);

/// What a plan is made from. Absent degrees, window and mode are chosen (plan/cost_model.h).
struct PlanRequest {
  int world_size = 1;
  int ranks_per_machine = 0;  // neighbours on a fast link; 0: all of them
  int sequence_size = 1;
  std::optional<SequenceParallelMode> mode;
  std::optional<int> ulysses_degree, ring_degree;  // usp and loongtrain
  std::optional<int> window_size;                  // loongtrain
  std::optional<int> head_waves;                   // absent: 1, of async-ulysses 2
  int zero_stage = 0;
  std::optional<int64_t> shard_size;  // absent: the world with a zero_stage, 1 without
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 64;
  Packing row = Packing::single(8192);  // documents that are expected in a row
  int64_t element_bytes = 4;            // of queries and keys
  bool cuda = false;
  bool checkpointing = true;
};

/// Throws UserError for whatever cannot be: what was given, the limit, the remedy, and the modes
/// that can serve. sequence_size 1 is local whatever the mode (sizes are tried with the mode left
/// as it is), but refuses what asks for several ranks. The same on all ranks.
ParallelPlan make_parallel_plan(const PlanRequest& request);
ParallelPlan make_parallel_plan(int world_size, int sequence_size,
                                std::optional<SequenceParallelMode> mode, int64_t num_heads,
                                int64_t num_kv_heads);

}  // namespace longspan
