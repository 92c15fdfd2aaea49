// Checks of the description of every method in the register. conformance_test.cpp checks the
// attention and plan/attention_volume_test.cpp the bytes; both read the register.
#include <c10/util/Exception.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "longspan/base/user_error.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/geometry.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {
namespace {

TEST_CASE(
    "methods: names are found, are one method's each, and are none that means another thing") {
  std::set<std::string_view> names{"auto", kLocal.name};
  for (const Method* method : all_methods()) {
    CAPTURE(std::string(method->name));
    CHECK(!method->name.empty());
    CHECK(names.insert(method->name).second);
    CHECK(method_named(method->name) == method);
    CHECK((!takes(*method, kWindowSize) ||
           takes(*method, kUlyssesDegree)));  // windows need a ring degree
  }
  CHECK(names.size() == all_methods().size() + 2);
  for (const char* other : {"auto", "local", "", "Ulysses"}) {
    CHECK_THROWS_WITH_AS(method_named(other), doctest::Contains("The modes are: ulysses, "),
                         UserError);
  }
}

TEST_CASE("methods: every part of every description answers, alone and as what auto tries") {
  const AttentionShape shape(plain_attention(16, 4, 64));
  for (const Method* method : all_methods()) {
    int served = 0;
    for (const int P : {2, 3, 4, 8}) {
      CAPTURE(fmt::format("{} P={}", method->name, P));
      PlanRequest request;
      request.world_size = request.sequence_size = P;
      request.method = method;
      request.num_heads = shape.spec.num_heads;
      request.num_kv_heads = shape.spec.num_kv_heads;
      request.row = Packing::from_lengths({500, 33, 1000});
      if (!method->refusal(P, shape).empty()) {
        CHECK(method->refusal(P, shape).starts_with("cannot split 16 attention heads"));
        CHECK_THROWS_AS(make_parallel_plan(request), UserError);
        continue;
      }
      ++served;
      const std::vector<int> degrees = method->ulysses_degrees(request, *method);
      CHECK(!degrees.empty());
      CHECK(std::ranges::is_sorted(degrees));
      for (const int degree : degrees) CHECK(P % degree == 0);
      for (const int degree : method->auto_degrees(request, *method)) {
        CHECK(std::ranges::count(degrees, degree) == 1);
      }
      const ParallelPlan plan = make_parallel_plan(request);
      CHECK(plan.method == method);
      if (takes(*method, kHeadWaves)) {
        CHECK(method->head_waves.own >= 1);
        CHECK(method->head_waves.most(shape.spec.num_heads, plan) >= plan.head_waves);
      } else {
        CHECK(plan.head_waves == 1);
      }
      const Packing padded = method->padded_row(plan, request.row);
      CHECK(padded.num_tokens() >= request.row.num_tokens());
      CHECK(padded.num_tokens() % P == 0);
      const RankWork work = busiest_rank(plan, shape, padded, /*tile=*/1);
      CHECK(!work.head_pairs.empty());
      // The busiest rank has at least its share of all pairs of all heads.
      double pairs = 0, all = 0;
      for (const double of_hop : work.head_pairs) pairs += of_hop;
      for (int64_t d = 0; d < request.row.num_documents(); ++d) {
        const auto length = static_cast<double>(request.row.length(d));
        all += length * (length + 1) / 2;
      }
      CHECK(pairs >= static_cast<double>(shape.spec.num_heads) * all / P);
      const auto [heads, context] = method->volume(plan, shape, padded, false, false);
      CHECK((plan.ulysses_size > 1) == (heads.forward > 0));
      CHECK((plan.ring_size > 1) == (context.forward > 0));
      for (const bool cuda : {false, true}) {
        CHECK(attention_seconds(plan, shape, request.row, true, cluster_model(cuda, P, 4)) > 0);
      }
    }
    CHECK(served > 0);
  }
}

TEST_CASE("methods: attention of one rank does not stand in for that of several") {
  ParallelPlan plan;
  CHECK(plan.method == &kLocal);
  CHECK(make_attention(plan, Mesh(), cpu_block_kernel()) != nullptr);
  plan.world_size = plan.sequence_size = plan.ulysses_size = 2;
  CHECK_THROWS_AS(make_attention(plan, Mesh(), cpu_block_kernel()), c10::Error);
}

}  // namespace
}  // namespace longspan
