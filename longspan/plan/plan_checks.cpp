#include "longspan/plan/plan_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "longspan/config/user_error.h"
#include "longspan/text/counted.h"

namespace longspan {

using Mode = SequenceParallelMode;

std::string names_of(const std::vector<Mode>& modes) {
  std::string names;
  for (const Mode mode : modes) names += (names.empty() ? "" : ", ") + name_of(mode);
  return names;
}

bool is_ring(Mode mode) {
  return mode == Mode::kRing || mode == Mode::kStripedRing || mode == Mode::kZigzagRing ||
         mode == Mode::kLlama3;
}

namespace {

std::string divisors_of(int number) {
  std::string divisors;
  for (int size = 1; size <= number; ++size) {
    if (number % size == 0) divisors += (divisors.empty() ? "" : ", ") + std::to_string(size);
  }
  return divisors;
}

}  // namespace

void check_world(int world_size, int sequence_size) {
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
    throw UserError(fmt::format(
        "sequence_parallel_size: {} does not divide the number of processes, {}. Choose one of {}, "
        "or start a multiple of {} processes (nproc_per_node, torchrun).",
        sequence_size, world_size, divisors_of(world_size), sequence_size));
  }
}

int shard_size_of(const PlanRequest& request) {
  const int64_t size = request.shard_size.value_or(request.zero_stage > 0 ? request.world_size : 1);
  if (size >= 1 && request.world_size % size == 0) return static_cast<int>(size);
  throw UserError(fmt::format(
      "zero_shard_size: {} does not divide the number of processes, {}. Choose one of {}, or leave "
      "it out: all of them.",
      size, request.world_size, divisors_of(request.world_size)));
}

std::string warning_of_shards(const PlanRequest& request) {
  if (!request.shard_size) return "";
  // Groups are neighbours, and so are the processes of a machine.
  const int64_t size = *request.shard_size, here = request.ranks_per_machine;
  if (here < 1 || here >= request.world_size || size > here || here % size == 0) return "";
  return fmt::format(
      "zero_shard_size: {} does not divide the {} processes of a machine, so some groups lie on "
      "two "
      "machines and gather parameters over the network. Choose one of {}, or start a multiple of "
      "{} processes a machine.",
      size, here, divisors_of(std::gcd(request.world_size, request.ranks_per_machine)), size);
}

/// With one rank to a row. A mode alone asks for nothing: sizes are tried with the mode left as it
/// is.
void check_keys_of_one_rank(const PlanRequest& request) {
  const int64_t ranks =
      int64_t{request.ulysses_degree.value_or(1)} * request.ring_degree.value_or(1);
  if (ranks > 1) {
    throw UserError(fmt::format(
        "sequence_parallel_ulysses_degree and sequence_parallel_ring_degree ask for {0} ranks, and "
        "sequence_parallel_size is 1. Set sequence_parallel_size: {0}, or remove the degrees.",
        ranks));
  }
  for (const auto& [key, value] : {std::pair{"sequence_parallel_window_size", request.window_size},
                                   std::pair{"sequence_parallel_head_waves", request.head_waves}}) {
    if (value.value_or(1) <= 1) continue;
    throw UserError(fmt::format(
        "{0}: {1} is given, and sequence_parallel_size is 1: there is nothing to exchange. Set "
        "sequence_parallel_size to the number of processes that share a row, or remove {0}.",
        key, *value));
  }
}

/// The keys that were given without a mode that they belong to.
void check_keys_fit(const PlanRequest& request, Mode mode) {
  const auto refuse = [&](const char* key, int value, const char* modes) {
    throw UserError(
        fmt::format("{}: {} is given, and sequence_parallel_mode: {} has no use for it. Remove it, "
                    "or take one of: {}.",
                    key, value, name_of(mode), modes));
  };
  if (!has_degrees(mode)) {
    if (request.ulysses_degree) {
      refuse("sequence_parallel_ulysses_degree", *request.ulysses_degree, "usp, loongtrain");
    }
    if (request.ring_degree) {
      refuse("sequence_parallel_ring_degree", *request.ring_degree, "usp, loongtrain");
    }
  }
  if (mode != Mode::kLoongTrain && request.window_size) {
    refuse("sequence_parallel_window_size", *request.window_size, "loongtrain");
  }
  if (!has_head_waves(mode) && request.head_waves.value_or(1) > 1) {
    refuse("sequence_parallel_head_waves", *request.head_waves,
           "ulysses, dummy-head-ulysses, async-ulysses, balanced-ulysses, usp, loongtrain");
  }
}

void check_heads(const PlanRequest& request, Mode mode) {
  const int P = request.sequence_size;
  if (can_split(mode, P, request.num_heads, request.num_kv_heads, request.head_dim)) return;
  const std::string able =
      names_of(modes_that_split(P, request.num_heads, request.num_kv_heads, request.head_dim));
  if (mode == Mode::kXtunerUlysses) {
    throw UserError(fmt::format(
        "sequence_parallel_mode: xtuner-ulysses cannot split {} over {}: each would be cut in {}, "
        "and that does not divide head_dim, {}. Modes that can "
        "split them: {}.",
        counted(request.num_heads, "attention head"), counted(P, "rank"),
        counted(P / std::gcd(request.num_heads, int64_t{P}), "slice"), request.head_dim, able));
  }
  throw UserError(fmt::format(
      "sequence_parallel_mode: {} cannot split {} ({}) over {}: "
      "sequence_parallel_size must divide the number of attention heads. Modes that can "
      "split them: {}.",
      name_of(mode), counted(request.num_heads, "attention head"),
      counted(request.num_kv_heads, "key-value head"), counted(P, "rank"), able));
}

/// The Ulysses degrees that a mode of two degrees may have.
std::vector<int> ulysses_degrees(const PlanRequest& request, Mode mode) {
  const int P = request.sequence_size;
  const std::optional<int> u = request.ulysses_degree, r = request.ring_degree;
  const int64_t N = request.num_heads;
  const int64_t product = int64_t{u.value_or(1)} * r.value_or(1);
  if (u && r && product != P) {
    throw UserError(fmt::format(
        "sequence_parallel_ulysses_degree: {} times sequence_parallel_ring_degree: {} is {}, and "
        "sequence_parallel_size is {}. Make them equal, or leave one degree out.",
        *u, *r, product, P));
  }
  for (const auto& [name, degree] : {std::pair{"ulysses", u}, std::pair{"ring", r}}) {
    if (degree && (*degree < 1 || P % *degree != 0)) {
      throw UserError(fmt::format(
          "sequence_parallel_{}_degree: {} does not divide sequence_parallel_size, {}. Choose one "
          "of {}, or leave the degrees out.",
          name, *degree, P, divisors_of(P)));
    }
  }
  const std::optional<int> given = u ? u : r ? std::optional(P / *r) : std::nullopt;
  if (given && N % *given != 0) {
    std::string able;
    for (int degree = 1; degree <= P; ++degree) {
      if (P % degree == 0 && N % degree == 0)
        able += fmt::format("{}{}", able.empty() ? "" : ", ", degree);
    }
    throw UserError(fmt::format(
        "sequence_parallel_mode: {} with a Ulysses degree of {} cannot split {}: "
        "the degree must divide them. Set sequence_parallel_ulysses_degree to one of {}, leave the "
        "degrees out, or take a mode that needs no such thing: balanced-ulysses, zigzag-ring, "
        "llama3.",
        name_of(mode), *given, counted(N, "attention head"), able));
  }
  if (given) return {*given};
  std::vector<int> degrees;
  for (int degree = 1; degree <= P; ++degree) {
    if (P % degree == 0 && N % degree == 0) degrees.push_back(degree);
  }
  return degrees;
}

/// The windows of a ring: what was asked for, or the ring ranks of a machine.
int window_of(const PlanRequest& request, int ring_size, int ulysses_size) {
  if (request.window_size) {
    if (*request.window_size < 1 || ring_size % *request.window_size != 0) {
      throw UserError(fmt::format(
          "sequence_parallel_window_size: {} does not divide the ring degree, {} (with a Ulysses "
          "degree of {}). Choose one of {}, or leave it out.",
          *request.window_size, ring_size, ulysses_size, divisors_of(ring_size)));
    }
    return *request.window_size;
  }
  const int here = std::max(1, request.ranks_per_machine / ulysses_size);
  return std::gcd(ring_size, here);
}

/// Head waves are at most the query heads of a rank; with `balanced` parts of heads attend too, but
/// as many waves as heads are enough.
void check_waves(const PlanRequest& request, const ParallelPlan& plan) {
  if (plan.head_waves == 1) return;
  const int64_t N = request.num_heads, P = plan.sequence_size;
  if (has_degrees(plan.mode) && plan.ulysses_size == 1) {
    throw UserError(fmt::format(
        "sequence_parallel_head_waves: {} needs a Ulysses degree above 1, and {} has none here: no "
        "degree above 1 divides both sequence_parallel_size ({}) and {}, or "
        "the degrees say so. Remove sequence_parallel_head_waves, or take one of: "
        "balanced-ulysses, dummy-head-ulysses.",
        plan.head_waves, name_of(plan.mode), P, counted(N, "attention head")));
  }
  int64_t most = N / plan.ulysses_size;
  if (plan.mode == Mode::kDummyHeadUlysses) most = (N + P - 1) / P;
  if (plan.mode == Mode::kBalancedUlysses) most = N;
  if (plan.head_waves < 1 || plan.head_waves > most) {
    const bool balanced = plan.mode == Mode::kBalancedUlysses;
    throw UserError(fmt::format(
        "sequence_parallel_head_waves: {} is more than the {} that {} has at a time: "
        "{} over {}. Give a number from 1 to {}{}.",
        plan.head_waves, counted(most, "query head"), balanced ? "the layer" : "a rank",
        counted(N, "head"),
        has_degrees(plan.mode) ? fmt::format("a Ulysses degree of {}", plan.ulysses_size)
                               : counted(P, "rank"),
        most,
        !balanced && plan.head_waves <= N ? ", or take balanced-ulysses, which splits heads" : ""));
  }
}

}  // namespace longspan
