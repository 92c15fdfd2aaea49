#include "longspan/testing/method_plans.h"

#include <utility>

#include "longspan/registers/method.h"

namespace longspan::testing {

std::vector<MethodPlan> plans_of_every_method(int max_ranks) {
  std::vector<MethodPlan> plans;
  constexpr int64_t kHeadDim = 60;  // divisible into slices for up to 6 ranks
  for (const auto& [num_heads, num_kv_heads] : {std::pair{8, 2}, {6, 3}, {3, 3}}) {
    const AttentionSpec spec = plain_attention(num_heads, num_kv_heads, kHeadDim);
    plans.push_back({ParallelPlan{}, spec});
    for (const Method* method : all_methods()) {
      for (int P = 2; P <= max_ranks; ++P) {
        if (!can_split(*method, P, spec)) continue;
        PlanRequest request;
        request.world_size = request.sequence_size = P;
        request.method = method;
        request.num_heads = num_heads;
        request.num_kv_heads = num_kv_heads;
        request.head_dim = kHeadDim;
        const std::vector<int> degrees = method->ulysses_degrees(request, *method);
        for (const int degree : degrees) {
          if (degrees.size() > 1) request.ulysses_degree = degree;
          request.window_size.reset();
          plans.push_back({make_parallel_plan(request), spec});
          const ParallelPlan& plan = plans.back().plan;
          const bool has_waves = takes(*method, kHeadWaves) &&
                                 (plan.ulysses_size > 1 || !takes(*method, kUlyssesDegree)) &&
                                 method->head_waves.most(num_heads, plan) >= 2;
          const bool has_windows = takes(*method, kWindowSize) && plan.ring_size == 4;
          if (has_waves) {
            request.head_waves = 2;
            plans.push_back({make_parallel_plan(request), spec});
            request.head_waves.reset();
          }
          if (has_windows) {
            request.window_size = 2;
            plans.push_back({make_parallel_plan(request), spec});
          }
        }
      }
    }
  }
  return plans;
}

}  // namespace longspan::testing
