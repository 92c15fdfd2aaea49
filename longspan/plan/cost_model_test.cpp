#include "longspan/plan/cost_model.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

namespace longspan {
namespace {

struct Run {
  int64_t num_heads, num_kv_heads;
  int P;
  std::vector<int64_t> documents;
  bool cuda = false;
  int ranks_per_machine = 0;
  int64_t head_dim = 128;
};

PlanRequest request_of(const Run& run) {
  PlanRequest request;
  request.world_size = request.sequence_size = run.P;
  request.ranks_per_machine = run.ranks_per_machine;
  request.num_heads = run.num_heads;
  request.num_kv_heads = run.num_kv_heads;
  request.head_dim = run.head_dim;
  request.row = Packing::from_lengths(run.documents);
  request.cuda = run.cuda;
  request.element_bytes = run.cuda ? 2 : 4;
  return request;
}

ParallelPlan choice(const Run& run) { return make_parallel_plan(request_of(run)); }

double seconds(const Run& run, const Method* method, std::optional<int> ulysses = {},
               int waves = 1) {
  PlanRequest request = request_of(run);
  request.method = method;
  request.ulysses_degree = ulysses;
  request.head_waves = waves;
  const int near = run.ranks_per_machine > 0 ? run.ranks_per_machine : run.P;
  return attention_seconds(
      make_parallel_plan(request),
      {plain_attention(run.num_heads, run.num_kv_heads, run.head_dim), request.element_bytes},
      request.row, true, cluster_model(run.cuda, near, request.element_bytes));
}

TEST_CASE("auto: one machine and heads that divide: ulysses") {
  for (const bool cuda : {false, true}) {
    CHECK(choice({8, 2, 2, {8192}, cuda}).method == method_named("ulysses"));
    CHECK(choice({8, 8, 2, {8192}, cuda}).method == method_named("ulysses"));
    CHECK(choice({32, 8, 8, {131072}, cuda}).method == method_named("ulysses"));
  }
}

TEST_CASE("auto: heads that do not divide are balanced, and the line says so") {
  const ParallelPlan plan = choice({28, 4, 8, {131072}, true});
  CHECK(plan.method == method_named("balanced-ulysses"));
  CHECK(plan.reason.starts_with(
      "sequence parallelism: balanced-ulysses (auto): 28 heads do not divide by 8; for rows of 1 x "
      "131072 tokens, "));
  CAPTURE(plan.reason);
  CHECK(plan.reason.find("estimated") != std::string::npos);
}

TEST_CASE("auto: the line says the rows that it assumes, and no seconds") {
  const std::string slow_link = choice({32, 8, 16, {131072}, true, 8}).reason;
  CAPTURE(slow_link);
  CHECK(slow_link.find("for rows of 1 x 131072 tokens, attention is estimated to take 1.") !=
        std::string::npos);
  CHECK(slow_link.find("times as long with the next best, ") != std::string::npos);
  const std::string rows = choice({8, 2, 2, {4096, 4096}}).reason;
  CHECK(rows.find("for rows of 2 x 4096 tokens, ") != std::string::npos);
  CHECK(rows.find(" ms") == std::string::npos);
  CHECK(choice({8, 2, 2, {4096, 1024}}).reason.find("for rows of 5,120 tokens in 2 documents, ") !=
        std::string::npos);
  PlanRequest request = request_of({8, 2, 4, {4096}});
  request.method = method_named("usp");
  CHECK(make_parallel_plan(request).reason.ends_with(
      " (degrees chosen for rows of 1 x 4096 tokens)"));
  request.method = method_named("zigzag-ring");
  CHECK(make_parallel_plan(request).reason == "sequence parallelism: zigzag-ring");
}

TEST_CASE("auto: two machines of 8: Ulysses inside, the ring across") {
  const ParallelPlan plan = choice({32, 8, 16, {131072}, true, 8});
  CHECK(plan.method == method_named("usp"));
  CHECK(plan.ulysses_size == 8);
  CHECK(plan.ring_size == 2);
  CHECK(plan.reason.find("usp, ulysses 8 x ring 2 (auto)") != std::string::npos);
  // At most 4 divides 28 heads: still inside.
  CHECK(choice({28, 4, 16, {131072}, true, 8}).ulysses_size == 4);
}

TEST_CASE("auto: one kv head of short rows on a slow device: the ring sends least") {
  CHECK(choice({8, 1, 2, {4096}, false, 0, 64}).ring_size == 2);
}

TEST_CASE("auto: many short documents are not cut in chunks") {
  for (const bool cuda : {false, true}) {
    const Run run{28, 4, 8, std::vector<int64_t>(512, 64), cuda};
    CHECK(choice(run).ring_size == 1);
    CHECK(seconds(run, method_named("zigzag-ring")) >
          5 * seconds(run, method_named("balanced-ulysses")));
  }
}

TEST_CASE("cost: known ratios") {
  const Run run{32, 32, 8, {131072}, true};
  // All ranks wait for the one that sees most; dummy heads and repeated attention are work too.
  CHECK(seconds(run, method_named("ring")) ==
        doctest::Approx(2 * seconds(run, method_named("zigzag-ring"))).epsilon(0.1));
  const Run odd{28, 4, 8, {131072}, true};
  CHECK(
      seconds(odd, method_named("dummy-head-ulysses")) ==
      doctest::Approx(32.0 / 28.0 * seconds(odd, method_named("balanced-ulysses"))).epsilon(0.01));
  CHECK(seconds(odd, method_named("xtuner-ulysses")) ==
        doctest::Approx(2.0 * seconds(odd, method_named("balanced-ulysses"))).epsilon(0.02));
  // Without a slow link the degrees of usp hardly matter; with one, the exchange belongs inside a
  // machine.
  const Run two{32, 8, 16, {131072}, true, 8};
  CHECK(seconds(two, method_named("usp"), 8) < seconds(two, method_named("usp"), 16));
  CHECK(seconds(two, method_named("usp"), 8) < seconds(two, method_named("usp"), 1));
}

TEST_CASE("cost: monotone") {
  for (const Method* method : all_methods()) {
    CAPTURE(std::string(method->name));
    for (const bool cuda : {false, true}) {
      // Longer rows take longer, more ranks are faster, slower links are slower.
      double before = 0;
      for (const int64_t length : {8192, 16384, 65536, 262144}) {
        const double now = seconds({32, 8, 8, {length}, cuda}, method);
        CHECK(now > before);
        before = now;
      }
      before = 1e9;
      for (const int P : {2, 4, 8, 16}) {
        const double now = seconds({32, 8, P, {131072}, cuda}, method);
        CHECK(now < before);
        before = now;
      }
      for (const int near : {1, 2, 4}) {
        CHECK(seconds({32, 8, 8, {131072}, cuda, near}, method) >=
              seconds({32, 8, 8, {131072}, cuda, 8}, method));
      }
    }
  }
  // A ring is as fast as its slowest hop.
  CHECK(seconds({32, 32, 8, {16384}, true, 4}, method_named("zigzag-ring")) >
        2 * seconds({32, 32, 8, {16384}, true, 8}, method_named("zigzag-ring")));
  // Waves hide communication as far as possible.
  const Run run{32, 32, 8, {32768}, true};
  CHECK(seconds(run, method_named("ulysses"), {}, 4) < seconds(run, method_named("ulysses")));
  CHECK(seconds(run, method_named("async-ulysses")) < seconds(run, method_named("ulysses")));
}

TEST_CASE("cost: ranks of a machine share its port on CPU") {
  // An exchange between two machines of 4 ranks: each rank sends half of its bytes through the
  // port.
  const auto exchange = [](int near) {
    return seconds({8, 8, 8, {512}, false, near, 64}, method_named("ulysses"));
  };
  CHECK(exchange(4) > 1.5 * exchange(8));
  // A ring that crosses once per machine has the port to itself, and its cores copy as many bytes.
  const double inside = seconds({8, 8, 8, {4096}, false, 8, 64}, method_named("zigzag-ring"));
  const double across = seconds({8, 8, 8, {4096}, false, 4, 64}, method_named("zigzag-ring"));
  CHECK(across >= inside);
  CHECK(across < 1.1 * inside);
}

TEST_CASE("cost: padding is that of the method") {
  ParallelPlan plan;
  plan.world_size = plan.sequence_size = plan.ring_size = 4;
  plan.method = method_named("zigzag-ring");
  CHECK(padded_row(plan, Packing::from_lengths({5, 9})) == Packing::from_lengths({8, 16}));
  plan.method = method_named("striped-ring");
  CHECK(padded_row(plan, Packing::from_lengths({5, 9})) == Packing::from_lengths({5, 9, 2}));
}

}  // namespace
}  // namespace longspan
