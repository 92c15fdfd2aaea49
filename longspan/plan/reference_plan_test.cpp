// Plans of two models that share the division of tokens: a policy and its reference.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/plan_checks.h"

namespace longspan {
namespace {
namespace with_two_models {

PlanRequest request_of(int world_size, int sequence_size, const Method* method, int64_t num_heads,
                       int64_t num_kv_heads) {
  PlanRequest request;
  request.world_size = world_size;
  request.sequence_size = sequence_size;
  request.method = method;
  request.num_heads = num_heads;
  request.num_kv_heads = num_kv_heads;
  return request;
}

PlanRequest with_reference(PlanRequest request, int64_t num_heads, int64_t num_kv_heads) {
  request.reference = {"ref_model teacher", {{plain_attention(num_heads, num_kv_heads, 64), 3}}};
  return request;
}

std::string error_of(const PlanRequest& request) {
  try {
    make_parallel_plan(request);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("plan: a second model with other heads gets the same division of tokens, or an error") {
  for (const Method* method : all_methods()) {
    const PlanRequest request = request_of(8, 4, method, 8, 4);
    if (method->name == kLocal.name) continue;
    const ParallelPlan plan = make_parallel_plan(request);
    CAPTURE(describe_method(plan));
    for (const int64_t num_heads : {4, 8, 12, 16, 6}) {
      PlanRequest other = request;
      other.num_heads = num_heads;
      other.num_kv_heads = 2;
      try {
        const ParallelPlan second = plan_for_heads(plan, other);
        CHECK((second.method == plan.method && second.ulysses_size == plan.ulysses_size));
        CHECK((second.ring_size == plan.ring_size && second.window_size == plan.window_size));
        check_waves(other, second);
      } catch (const UserError&) {
        CHECK(num_heads % 4 != 0);
      }
    }
  }
}

TEST_CASE("plan: auto chooses no method that refuses the second model") {
  for (const int P : {2, 3, 4, 6, 8}) {
    for (const int64_t heads : {4, 6, 8, 12}) {
      for (const int64_t others : {1, 2, 4, 5, 6, 8, 12, 14}) {
        CAPTURE(fmt::format("{} and {} heads on {} ranks", heads, others, P));
        const PlanRequest alone = request_of(P, P, nullptr, heads, 2),
                          both = with_reference(alone, others, 1);
        const ParallelPlan plan = make_parallel_plan(both);
        const ParallelPlan second = plan_for_heads(plan, with_layers(both, both.reference->layers));
        CHECK((second.method == plan.method && second.ulysses_size == plan.ulysses_size));
        // A second model that suits the method of the first changes nothing.
        const ParallelPlan first = make_parallel_plan(alone);
        bool fits = true;
        try {
          plan_for_heads(first, with_layers(both, both.reference->layers));
        } catch (const UserError&) {
          fits = false;
        }
        if (fits) CHECK(describe_method(plan) == describe_method(first));
      }
    }
  }
}

TEST_CASE("plan: a second model narrows the choice, and the reason says so") {
  const PlanRequest alone = request_of(4, 4, nullptr, 8, 8), both = with_reference(alone, 6, 6);
  CHECK(make_parallel_plan(alone).method->name == "ulysses");
  const ParallelPlan plan = make_parallel_plan(both);
  CHECK(plan.method->name != "ulysses");
  CHECK_MESSAGE(
      plan.reason.find("of ref_model teacher, 6 heads do not divide by 4") != std::string::npos,
      plan.reason);
  // Degrees of a method that was asked for.
  PlanRequest usp = both;
  usp.method = method_named("usp");
  CHECK(make_parallel_plan(usp).ulysses_size <= 2);
  usp.ulysses_degree = 4;
  CHECK_MESSAGE(error_of(usp).starts_with("ref_model teacher: sequence_parallel"), error_of(usp));
  PlanRequest ulysses = both;
  ulysses.method = method_named("ulysses");
  CHECK_MESSAGE(error_of(ulysses).starts_with("ref_model teacher: sequence_parallel_mode: ulysses"),
                error_of(ulysses));
  // Waves of a method that was not asked for: the model with fewer heads limits them.
  PlanRequest waves = with_reference(request_of(4, 4, nullptr, 64, 64), 4, 4);
  waves.head_waves = 8;
  CHECK_MESSAGE(error_of(waves).find("8 is more than 4 attention heads allow") != std::string::npos,
                error_of(waves));
}

}  // namespace with_two_models
}  // namespace
}  // namespace longspan
