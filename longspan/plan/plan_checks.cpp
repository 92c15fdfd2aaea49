#include "longspan/plan/plan_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "longspan/base/user_error.h"
#include "longspan/plan/method_parts.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

std::string divisors_of(int64_t number) {
  std::string divisors;
  for (int64_t size = 1; size <= number; ++size) {
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

void check_experts_divide(int expert_parallel_size, int64_t num_experts, const std::string& whose) {
  if (num_experts % expert_parallel_size == 0) return;
  throw UserError(fmt::format(
      "expert_parallel_size: {} does not divide the {} of each layer of {}. Choose one of {}.",
      expert_parallel_size, counted(num_experts, "expert"), whose, divisors_of(num_experts)));
}

int expert_parallel_size_of(const PlanRequest& request, int shard_size) {
  const int size = request.expert_parallel_size;
  if (size == 1) return 1;
  if (size < 1) {
    throw UserError(fmt::format(
        "expert_parallel_size: {} must be at least 1 (1 = every process holds all experts).",
        size));
  }
  if (request.num_experts == 0) {
    throw UserError(fmt::format(
        "expert_parallel_size: {} is given, but the model has no experts to share out. Remove the "
        "key.",
        size));
  }
  if (request.world_size % size != 0) {
    throw UserError(fmt::format(
        "expert_parallel_size: {0} does not divide the number of processes, {1}. Choose one of "
        "{2}, or start a multiple of {0} processes (nproc_per_node, torchrun).",
        size, request.world_size, divisors_of(request.world_size)));
  }
  check_experts_divide(size, request.num_experts, "the model");
  if (shard_size > 1 && shard_size % size != 0) {
    throw UserError(fmt::format(
        "zero_shard_size: {0} is not a multiple of expert_parallel_size, {1}, so that its "
        "processes do not hold whole copies of the experts. Make it a multiple of {1}, or leave "
        "it out: all of them.",
        shard_size, size));
  }
  return size;
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

/// For one rank per row. A mode alone is accepted, so that users can try sizes without changing it.
void check_keys_of_one_rank(const PlanRequest& request) {
  const int64_t ranks =
      int64_t{request.ulysses_degree.value_or(1)} * request.ring_degree.value_or(1);
  if (ranks > 1) {
    throw UserError(fmt::format(
        "sequence_parallel_ulysses_degree and sequence_parallel_ring_degree ask for {0} ranks, and "
        "sequence_parallel_size is 1. Set sequence_parallel_size: {0}, or remove the degrees.",
        ranks));
  }
  for (const MethodKey* key : all_method_keys()) {
    const std::optional<int>& value = request.*key->given;
    if (value.value_or(1) <= 1) continue;
    throw UserError(fmt::format(
        "{0}: {1} is given, and sequence_parallel_size is 1: there is nothing to exchange. Set "
        "sequence_parallel_size to the number of processes that share a row, or remove {0}.",
        key->name, *value));
  }
}

void check_keys_fit(const PlanRequest& request, const Method& method) {
  const MethodKey* key = foreign_key(request, method);
  if (key == nullptr) return;
  throw UserError(fmt::format(
      "{}: {} is given, and sequence_parallel_mode: {} has no use for it. Remove it, "
      "or take one of: {}.",
      key->name, *(request.*key->given), method.name, names_of(methods_that_take(*key))));
}

void check_keys_fit_auto(const PlanRequest& request) {
  for (const MethodKey* key : all_method_keys()) {
    const std::optional<int>& given = request.*key->given;
    if (key->for_auto || given.value_or(key->idle) <= key->idle) continue;
    throw UserError(
        fmt::format("{0}: {1} belongs to sequence_parallel_mode: {2}, and no mode is given. Set "
                    "sequence_parallel_mode: {2}, or remove the key.",
                    key->name, *given, names_of(methods_that_take(*key), " or ")));
  }
}

void check_heads(const PlanRequest& request, const Method& method) {
  const int P = request.sequence_size;
  const AttentionSpec spec = attention_of(request);
  const std::string refusal = method.refusal(P, spec);
  if (refusal.empty()) return;
  throw UserError(fmt::format("sequence_parallel_mode: {} {}. Modes that can split them: {}.",
                              method.name, refusal, names_of(methods_that_split(P, spec))));
}

void check_degrees(const PlanRequest& request, const Method& method) {
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
    const auto needs_no_degree = [&](const Method& other) {
      return serves_any_heads(other) && !takes(other, kUlyssesDegree) &&
             !other.auto_degrees(request, other).empty();
    };
    throw UserError(fmt::format(
        "sequence_parallel_mode: {} with a Ulysses degree of {} cannot split {}: "
        "the degree must divide them. Set sequence_parallel_ulysses_degree to one of {}, leave the "
        "degrees out, or take a mode that needs no such thing: {}.",
        method.name, *given, counted(N, "attention head"), able,
        names_of(methods_that(needs_no_degree))));
  }
}

/// Returns the ranks of an inner ring: as requested, or the ring ranks of a machine.
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

/// At most as many head waves as query heads on a rank. If the method cuts heads, parts of heads
/// attend too, but as many waves as heads are enough.
void check_waves(const PlanRequest& request, const ParallelPlan& plan) {
  if (plan.head_waves == 1) return;
  const Method& method = *plan.method;
  const int64_t N = request.num_heads, P = plan.sequence_size;
  if (takes(method, kUlyssesDegree) && plan.ulysses_size == 1) {
    std::vector<const Method*> able = methods_that([](const Method& other) {
      return takes(other, kHeadWaves) && serves_any_heads(other) && !takes(other, kUlyssesDegree);
    });
    std::ranges::stable_partition(able, [](const Method* other) { return cuts_heads(*other); });
    throw UserError(fmt::format(
        "sequence_parallel_head_waves: {} needs a Ulysses degree above 1, and {} has none here: no "
        "degree above 1 divides both sequence_parallel_size ({}) and {}, or "
        "the degrees say so. Remove sequence_parallel_head_waves, or take one of: {}.",
        plan.head_waves, method.name, P, counted(N, "attention head"), names_of(able)));
  }
  const int64_t most = method.head_waves.most(N, plan);
  if (plan.head_waves < 1 || plan.head_waves > most) {
    const bool cut = cuts_heads(method);
    throw UserError(fmt::format(
        "sequence_parallel_head_waves: {} is more than the {} that {} has at a time: "
        "{} over {}. Give a number from 1 to {}{}.",
        plan.head_waves, counted(most, "query head"), cut ? "the layer" : "a rank",
        counted(N, "head"),
        takes(method, kUlyssesDegree) ? fmt::format("a Ulysses degree of {}", plan.ulysses_size)
                                      : counted(P, "rank"),
        most,
        !cut && plan.head_waves <= N ? fmt::format(", or take {}, which splits heads",
                                                   names_of(methods_that(cuts_heads), " or "))
                                     : ""));
  }
}

}  // namespace longspan
