#include "longspan/plan/parallel_plan.h"

#include <fmt/format.h>

#include "longspan/config/user_error.h"

namespace longspan {
namespace {

struct NamedMode {
  SequenceParallelMode mode;
  const char* name;
};

constexpr NamedMode kModes[] = {
    {SequenceParallelMode::kUlysses, "ulysses"},
    {SequenceParallelMode::kDummyHeadUlysses, "dummy-head-ulysses"},
    {SequenceParallelMode::kXtunerUlysses, "xtuner-ulysses"},
    {SequenceParallelMode::kAsyncUlysses, "async-ulysses"},
    {SequenceParallelMode::kBalancedUlysses, "balanced-ulysses"},
    {SequenceParallelMode::kRing, "ring"},
    {SequenceParallelMode::kStripedRing, "striped-ring"},
    {SequenceParallelMode::kZigzagRing, "zigzag-ring"},
    {SequenceParallelMode::kUsp, "usp"},
    {SequenceParallelMode::kLlama3, "llama3"},
    {SequenceParallelMode::kLoongTrain, "loongtrain"},
};

std::string all_names() {
  std::string names;
  for (const NamedMode& known : kModes)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

}  // namespace

std::string name_of(SequenceParallelMode mode) {
  for (const NamedMode& known : kModes) {
    if (known.mode == mode) return known.name;
  }
  return "local";
}

SequenceParallelMode sequence_parallel_mode_from(const std::string& name) {
  for (const NamedMode& known : kModes) {
    if (known.name == name) return known.mode;
  }
  throw UserError(fmt::format(
      "sequence_parallel_mode: {} is not a mode. The modes are: {}. Leave the key out to have one "
      "chosen.",
      name, all_names()));
}

bool can_split(SequenceParallelMode mode, int sequence_size, int64_t num_heads, int64_t) {
  switch (mode) {
    case SequenceParallelMode::kLocal:
      return sequence_size == 1;
    case SequenceParallelMode::kUlysses:
    case SequenceParallelMode::kAsyncUlysses:
      // kv heads may be fewer than ranks, or not divide: each goes to every rank that needs it.
      return num_heads % sequence_size == 0;
    default:
      return true;
  }
}

std::vector<SequenceParallelMode> modes_that_split(int sequence_size, int64_t num_heads,
                                                   int64_t num_kv_heads) {
  std::vector<SequenceParallelMode> modes;
  for (const NamedMode& known : kModes) {
    if (can_split(known.mode, sequence_size, num_heads, num_kv_heads)) modes.push_back(known.mode);
  }
  return modes;
}

ParallelPlan make_parallel_plan(int world_size, int sequence_size,
                                std::optional<SequenceParallelMode> mode, int64_t num_heads,
                                int64_t num_kv_heads) {
  if (world_size < 1) {
    throw UserError(
        fmt::format("The number of processes is {}; it must be at least 1.", world_size));
  }
  if (sequence_size < 1) {
    throw UserError(
        fmt::format("sequence_parallel_size: {} must be at least 1 (1 = no sequence parallelism).",
                    sequence_size));
  }
  if (world_size == 1 && sequence_size > 1) {
    throw UserError(
        fmt::format("sequence_parallel_size: {0} needs {0} processes, and there is 1. Set "
                    "nproc_per_node: {0}, or start them with torchrun, mpirun or srun.",
                    sequence_size));
  }
  if (world_size % sequence_size != 0) {
    std::string divisors;
    for (int size = 1; size <= world_size; ++size) {
      if (world_size % size == 0) divisors += (divisors.empty() ? "" : ", ") + std::to_string(size);
    }
    throw UserError(fmt::format(
        "sequence_parallel_size: {} does not divide the number of processes, {}. Choose one of {}, "
        "or start a multiple of {} processes (nproc_per_node, torchrun).",
        sequence_size, world_size, divisors, sequence_size));
  }

  ParallelPlan plan;
  plan.world_size = world_size;
  plan.sequence_size = sequence_size;
  plan.data_size = world_size / sequence_size;
  if (sequence_size == 1) return plan;

  const std::vector<SequenceParallelMode> able =
      modes_that_split(sequence_size, num_heads, num_kv_heads);
  if (!mode) mode = able.front();
  if (!can_split(*mode, sequence_size, num_heads, num_kv_heads)) {
    std::string names;
    for (SequenceParallelMode other : able) names += (names.empty() ? "" : ", ") + name_of(other);
    throw UserError(fmt::format(
        "sequence_parallel_mode: {} cannot split {} attention heads ({} key-value heads) over {} "
        "ranks: sequence_parallel_size must divide the number of attention heads. Modes that can "
        "split them: {}.",
        name_of(*mode), num_heads, num_kv_heads, sequence_size, names));
  }
  plan.mode = *mode;
  if (*mode == SequenceParallelMode::kUlysses) plan.ulysses_size = sequence_size;
  if (*mode == SequenceParallelMode::kZigzagRing) plan.ring_size = sequence_size;
  return plan;
}

}  // namespace longspan
