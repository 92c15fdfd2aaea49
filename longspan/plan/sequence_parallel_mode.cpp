// Names of the modes, what each has, and which heads it can split.
#include <fmt/format.h>

#include <numeric>

#include "longspan/config/user_error.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

using Mode = SequenceParallelMode;

struct NamedMode {
  Mode mode;
  const char* name;
};

constexpr NamedMode kModes[] = {
    {Mode::kUlysses, "ulysses"},
    {Mode::kDummyHeadUlysses, "dummy-head-ulysses"},
    {Mode::kXtunerUlysses, "xtuner-ulysses"},
    {Mode::kAsyncUlysses, "async-ulysses"},
    {Mode::kBalancedUlysses, "balanced-ulysses"},
    {Mode::kRing, "ring"},
    {Mode::kStripedRing, "striped-ring"},
    {Mode::kZigzagRing, "zigzag-ring"},
    {Mode::kUsp, "usp"},
    {Mode::kLlama3, "llama3"},
    {Mode::kLoongTrain, "loongtrain"},
};

}  // namespace

std::string name_of(Mode mode) {
  for (const NamedMode& known : kModes) {
    if (known.mode == mode) return known.name;
  }
  return "local";
}

const std::vector<Mode>& all_modes() {
  static const std::vector<Mode> modes = [] {
    std::vector<Mode> all;
    for (const NamedMode& known : kModes) all.push_back(known.mode);
    return all;
  }();
  return modes;
}

Mode sequence_parallel_mode_from(const std::string& name) {
  std::string names;
  for (const NamedMode& known : kModes) {
    if (known.name == name) return known.mode;
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  throw UserError(fmt::format(
      "sequence_parallel_mode: {} is not a mode. The modes are: {}. Write auto, or leave the key "
      "out, to have one chosen.",
      name, names));
}

bool has_degrees(Mode mode) { return mode == Mode::kUsp || mode == Mode::kLoongTrain; }

bool has_head_waves(Mode mode) {
  return mode == Mode::kUlysses || mode == Mode::kDummyHeadUlysses ||
         mode == Mode::kBalancedUlysses || mode == Mode::kAsyncUlysses || has_degrees(mode);
}

std::string describe_method(const ParallelPlan& plan) {
  std::string text = name_of(plan.mode);
  if (has_degrees(plan.mode)) {
    text += fmt::format(", ulysses {} x ring {}", plan.ulysses_size, plan.ring_size);
  }
  if (plan.mode == Mode::kLoongTrain) text += fmt::format(" in windows of {}", plan.window_size);
  if (plan.head_waves != (plan.mode == Mode::kAsyncUlysses ? kAsyncHeadWaves : 1)) {
    text += ", heads in " + counted(plan.head_waves, "wave");
  }
  return text;
}

bool can_split(Mode mode, int sequence_size, int64_t num_heads, int64_t, int64_t head_dim) {
  switch (mode) {
    case Mode::kLocal:
      return sequence_size == 1;
    case Mode::kUlysses:
    case Mode::kAsyncUlysses:
      // kv heads may be fewer than ranks, or not divide: each goes to every rank that needs it.
      return num_heads % sequence_size == 0;
    case Mode::kXtunerUlysses:
      return head_dim % (sequence_size / std::gcd(num_heads, int64_t{sequence_size})) == 0;
    default:
      return true;
  }
}

std::vector<Mode> modes_that_split(int sequence_size, int64_t num_heads, int64_t num_kv_heads,
                                   int64_t head_dim) {
  std::vector<Mode> modes;
  for (const Mode mode : all_modes()) {
    if (can_split(mode, sequence_size, num_heads, num_kv_heads, head_dim)) modes.push_back(mode);
  }
  return modes;
}

}  // namespace longspan
