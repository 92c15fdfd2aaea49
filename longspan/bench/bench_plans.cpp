// Chooses the rows of the table, and makes a plan of each method's options.
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/bench/attention_bench.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

ParallelPlan plan_of(const AttentionBenchOptions& options, int num_ranks, const Method& method,
                     std::optional<int> head_waves) {
  const ProblemShape& shape = options.shape;
  PlanRequest request;
  request.world_size = request.sequence_size = num_ranks;
  request.method = &method;
  request.ulysses_degree = options.ulysses_size;
  request.ring_degree = options.ring_size;
  request.window_size = options.window_size;
  request.head_waves = head_waves;
  while (const MethodKey* key = foreign_key(request, method)) (request.*key->given).reset();
  request.num_heads = shape.num_heads;
  request.num_kv_heads = shape.num_kv_heads;
  request.head_dim = shape.head_dim;
  request.row = Packing::from_lengths(options.document_lengths);
  request.element_bytes = static_cast<int64_t>(c10::elementSize(shape.dtype));
  request.checkpointing = shape.checkpointing;
  return make_parallel_plan(request);
}

}  // namespace

std::vector<ParallelPlan> plans_of(const AttentionBenchOptions& options, int num_ranks,
                                   std::vector<std::string>* skipped) {
  std::vector<ParallelPlan> plans;
  if (num_ranks == 1) return plans;
  const ProblemShape& shape = options.shape;
  const bool named = !options.methods.empty();
  const std::vector<const Method*> methods =
      named ? options.methods : methods_that_split(num_ranks, shape.attention());
  for (const Method* method : methods) {
    // A method without waves has one row, whatever numbers of waves the options name.
    if (!takes(*method, kHeadWaves) || options.head_waves.empty()) {
      plans.push_back(plan_of(options, num_ranks, *method, std::nullopt));
      continue;
    }
    if (!named) plan_of(options, num_ranks, *method, 1);  // throws for any reason except waves
    for (const int count : options.head_waves) {
      try {
        plans.push_back(plan_of(options, num_ranks, *method, count));
      } catch (const UserError& error) {
        // Named methods must be possible. Unnamed ones are left out where they are not.
        if (named) throw;
        if (skipped != nullptr) {
          skipped->push_back(fmt::format("{} in {} is left out: {}", method->name,
                                         counted(count, "wave"), error.what()));
        }
      }
    }
  }
  return plans;
}

std::string row_name(const ParallelPlan& plan) {
  return plan.sequence_size == 1 ? "undistributed" : describe_method(plan);
}

}  // namespace longspan
