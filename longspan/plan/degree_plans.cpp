#include "longspan/plan/degree_plans.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/base/user_error.h"
#include "longspan/registers/method_key.h"
#include "longspan/rows/dealing.h"

namespace longspan {
namespace {

/// Returns the next number of ranks, at most an eighth more. Whole machines of up to 16 ranks are
/// among the numbers.
int next_degree(int degree, int world_size) {
  if (degree == world_size) return degree + 1;
  const int step = degree < 16 ? 1 : degree < 64 ? 2 : degree < 128 ? 8 : 16;
  return std::min(world_size, degree / step * step + step);
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
  const int here = request.ranks_per_machine < 1 ? request.world_size : request.ranks_per_machine;
  const RanksOfRun ranks{.num_ranks = request.world_size, .ranks_per_machine = here};
  const int64_t longest =
      request.row.num_tokens() / std::max<int64_t>(1, request.row.num_documents());
  std::map<int, ParallelPlan> plans;
  for (int degree = 1; degree <= request.world_size;
       degree = next_degree(degree, request.world_size)) {
    if (ranks.ranges(degree).empty()) continue;
    PlanRequest of_row = degree == 1 ? for_one_rank(request) : request;
    of_row.world_size = of_row.sequence_size = degree;
    of_row.zero_stage = 0;
    of_row.shard_size.reset();
    // The longest row of so many ranks.
    of_row.row = Packing::single(std::max<int64_t>(degree, longest * degree / request.world_size));
    try {
      plans[degree] = make_parallel_plan(of_row);
    } catch (const UserError&) {
      if (degree == request.world_size) throw;
    }
  }
  return plans;
}

PlanRequest for_one_rank(PlanRequest request) {
  request.sequence_size = 1;
  request.head_waves.reset();
  return request;
}

}  // namespace longspan
