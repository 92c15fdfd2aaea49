#include "longspan/plan/degree_plans.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/registers/method_key.h"

namespace longspan {
namespace {

/// Returns the next number of ranks: steps of an eighth, so that large worlds have few plans.
int next_degree(int degree, int world_size) {
  return degree == world_size ? degree + 1 : std::min(world_size, degree + std::max(1, degree / 8));
}

}  // namespace

std::map<int, ParallelPlan> plans_by_degree(const PlanRequest& request) {
  for (const MethodKey* key : all_method_keys()) {
    if (key == &kHeadWaves || !(request.*key->given)) continue;
    throw UserError(fmt::format(
        "{}: {} is given, and with sequence_parallel_size: auto each row has its own number of "
        "processes. Remove {}, or set sequence_parallel_size to a number.",
        key->name, *(request.*key->given), key->name));
  }
  std::map<int, ParallelPlan> plans;
  for (int degree = 1; degree <= request.world_size;
       degree = next_degree(degree, request.world_size)) {
    PlanRequest of_row = request;
    of_row.world_size = of_row.sequence_size = degree;
    of_row.zero_stage = 0;
    of_row.shard_size.reset();
    if (degree == 1) of_row.head_waves.reset();
    try {
      plans[degree] = make_parallel_plan(of_row);
    } catch (const UserError&) {
      if (degree == request.world_size) throw;
    }
  }
  return plans;
}

}  // namespace longspan
