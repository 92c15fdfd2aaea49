// Compares the formulas to the ranks' counters.
#include "longspan/plan/attention_volume.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "longspan/plan/cost_model.h"
#include "longspan/testing/attention_case.h"

namespace longspan {
namespace {

using testing::AttentionCase;
using testing::DistributedTask;
using testing::random_case;
using testing::solve_all;

constexpr int64_t kHeadDim = 16;

Document star() {
  Document document{43, {{0, kNoParent}}};
  for (int64_t i = 0; i < 16; ++i) document.segments.push_back({11 + 2 * i, 0});
  return document;
}

const Packing kRows[] = {
    Packing::from_lengths({97}), Packing::from_documents({{29}, {1}, {40, Fork{9, 30}}, {7}, {20}}),
    Packing::from_lengths({3}),
    Packing::from_documents({{60, {}, {{3, 41}}}, {37, {}, {{1, 9}, {12, 36}}}}),
    // A tree of depth 3, and a star of 16 branches
    Packing::from_documents(
        {{40, {{0, kNoParent}, {3, 0}, {9, 1}, {10, 1}, {14, 3}, {22, 3}, {25, 0}}}, {2}, star()})};

/// The ranks' counters. The ranks connect once for all plans with the same groups.
class CountedBytes {
 public:
  void add(const PlanRequest& request, bool checkpointing = false, bool output_is_known = false,
           std::optional<int64_t> window = std::nullopt) {
    const at::ScalarType dtype = request.element_bytes == 2 ? at::kBFloat16 : at::kFloat;
    for (const Packing& row : kRows) {
      requests_.push_back(request);
      problems_.push_back(
          std::make_unique<AttentionCase>(random_case(row, attention_of(request), 1)));
      problems_.back()->spec.window = window;
      tasks_.push_back({problems_.back().get(), make_parallel_plan(request), dtype, checkpointing,
                        output_is_known});
    }
  }

  void check() const {
    const auto solutions = solve_all(tasks_);
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const auto& [problem, plan, dtype, checkpointing, output_is_known] = tasks_[i];
      CAPTURE(fmt::format(
          "{}, P = {}, heads {}/{}, values of {}, checkpointing {}, output known {}, row {}",
          describe_method(plan), plan.sequence_size, requests_[i].num_heads,
          requests_[i].num_kv_heads, problem->spec.value_dim, checkpointing, output_is_known,
          i % std::size(kRows)));
      const Packing padded = padded_row(plan, problem->packing);
      CHECK(padded.num_tokens() == solutions[i].padded.num_tokens());
      const AttentionVolume volume =
          attention_volume(plan, {problem->spec, requests_[i].element_bytes}, padded, checkpointing,
                           output_is_known);
      const Traffic& sent = solutions[i].traffic;
      CHECK(sent.sum == 0);
      CHECK(sent.all_to_all + sent.all_gather + sent.reduce_scatter + sent.shift ==
            volume.forward + volume.backward);
    }
  }

 private:
  std::vector<PlanRequest> requests_;
  std::vector<std::unique_ptr<AttentionCase>> problems_;
  std::vector<DistributedTask> tasks_;
};

PlanRequest request_of(int P, const Method* method, int64_t num_heads, int64_t num_kv_heads) {
  PlanRequest request;
  request.world_size = request.sequence_size = P;
  request.method = method;
  request.num_heads = num_heads;
  request.num_kv_heads = num_kv_heads;
  request.head_dim = kHeadDim;
  return request;
}

TEST_CASE("volume: counted bytes are the formula's, every method") {
  CountedBytes counted;
  for (const Method* method : all_methods()) {
    for (const int P : {2, 3, 4, 8}) {
      for (const auto& [N, M] : {std::pair{8, 8}, {8, 2}, {14, 2}, {12, 3}, {6, 1}}) {
        if (can_split(*method, P, plain_attention(N, M, kHeadDim)))
          counted.add(request_of(P, method, N, M));
      }
    }
  }
  counted.check();
}

TEST_CASE("volume: values of another head dim than keys, every method, kept and replayed") {
  CountedBytes counted;
  const auto add = [&](PlanRequest request) {
    if (!can_split(*request.method, request.sequence_size, attention_of(request))) return;
    counted.add(request);
    counted.add(request, /*checkpointing=*/true);
    counted.add(request, /*checkpointing=*/true, /*output_is_known=*/true);
    if (request.sequence_size != 2 || !takes(*request.method, kHeadWaves)) return;
    request.head_waves = 3;
    if (takes(*request.method, kUlyssesDegree)) request.ulysses_degree = 2;
    counted.add(request, /*checkpointing=*/true);
  };
  for (const Method* method : all_methods()) {
    for (const int P : {2, 3, 4}) {
      for (const auto& [N, M] : {std::pair{12, 3}, {6, 2}}) {
        PlanRequest request = request_of(P, method, N, M);
        request.value_dim = N == 12 ? 8 : 20;
        request.element_bytes = N == 12 ? 4 : 2;
        add(request);
      }
    }
  }
  counted.check();
}

TEST_CASE("volume: compositions, windows and waves, kept and replayed, fp32 and bf16") {
  CountedBytes counted;
  for (const auto& [checkpointing, output_is_known] :
       {std::pair{false, false}, {true, false}, {true, true}}) {
    for (const int64_t element_bytes : {2, 4}) {
      const auto check = [&, checkpointing = checkpointing, output_is_known = output_is_known](
                             PlanRequest request, int ulysses, int window, int waves) {
        request.element_bytes = element_bytes;
        if (ulysses > 0) request.ulysses_degree = ulysses;
        if (window > 0) request.window_size = window;
        if (waves > 1) request.head_waves = waves;
        counted.add(request, checkpointing, output_is_known);
      };
      check(request_of(4, method_named("usp"), 8, 2), 2, 0, 1);
      check(request_of(4, method_named("usp"), 12, 3), 2, 0, 3);
      check(request_of(6, method_named("usp"), 6, 1), 2, 0, 1);
      check(request_of(4, method_named("loongtrain"), 8, 2), 1, 2, 1);
      check(request_of(8, method_named("loongtrain"), 8, 4), 2, 2, 2);
      check(request_of(4, method_named("ulysses"), 8, 2), 0, 0, 2);
      check(request_of(3, method_named("dummy-head-ulysses"), 8, 2), 0, 0, 3);
      check(request_of(3, method_named("balanced-ulysses"), 7, 7), 0, 0, 1);
      check(request_of(3, method_named("balanced-ulysses"), 8, 2), 0, 0, 4);
      check(request_of(4, method_named("xtuner-ulysses"), 6, 2), 0, 0, 1);
      check(request_of(2, method_named("async-ulysses"), 6, 2), 0, 0, 1);
      check(request_of(2, method_named("async-ulysses"), 6, 2), 0, 0, 3);
      check(request_of(3, method_named("llama3"), 6, 2), 0, 0, 1);
      check(request_of(3, method_named("striped-ring"), 6, 2), 0, 0, 1);
    }
  }
  counted.check();
}

TEST_CASE("volume: sliding windows, every method, kept and replayed, fp32 and bf16") {
  CountedBytes counted;
  for (const Method* method : all_methods()) {
    for (const int P : {2, 3, 4}) {
      for (const auto& [N, M] : {std::pair{12, 3}, {6, 2}}) {
        PlanRequest request = request_of(P, method, N, M);
        request.element_bytes = N == 12 ? 4 : 2;
        if (!can_split(*method, P, attention_of(request))) continue;
        for (const int64_t window : {6, 30}) {
          counted.add(request, /*checkpointing=*/P == 3, /*output_is_known=*/false, window);
          if (P != 4 || !takes(*method, kUlyssesDegree)) continue;
          request.ulysses_degree = 2;
          counted.add(request, /*checkpointing=*/true, /*output_is_known=*/true, window);
          request.ulysses_degree.reset();
        }
      }
    }
  }
  counted.check();
}

TEST_CASE("volume: in a window of 1024 of 32k tokens four ranks of a ring send 0.15x at most") {
  PlanRequest request = request_of(4, method_named("ring"), 1, 1);
  const Packing row = Packing::single(32768);
  const auto sent = [&](const char* method, std::optional<int64_t> window) {
    request.method = method_named(method);
    const ParallelPlan plan = make_parallel_plan(request);
    AttentionSpec spec = attention_of(request);
    spec.window = window;
    const AttentionVolume volume = attention_volume(plan, spec, row);
    AttentionCase problem = random_case(row, attention_of(request), 1);
    problem.spec.window = window;
    if (window) {  // full attention of such a row is slow, and is counted above
      const Traffic traffic = solve_all({{&problem, plan, at::kFloat}})[0].traffic;
      CHECK(traffic.all_to_all + traffic.shift == volume.forward + volume.backward);
    }
    return static_cast<double>(volume.forward + volume.backward);
  };
  // Three ranks fetch 1023 tokens instead of four ranks 3 x 8192; zigzag has six such chunks.
  CHECK(sent("ring", 1024) / sent("ring", std::nullopt) ==
        doctest::Approx(3.0 * 1023 / (4 * 3 * 8192)));
  CHECK(sent("zigzag-ring", 1024) / sent("zigzag-ring", std::nullopt) ==
        doctest::Approx(6.0 * 1023 / (4 * 3 * 8192)));
}

TEST_CASE("volume: balanced heads send no more than dummy heads, and no ring less than its hops") {
  for (const auto& [N, M] : {std::pair{28, 4}, {14, 2}, {12, 2}}) {
    const AttentionShape shape(plain_attention(N, M, 128));
    const Packing row = Packing::from_lengths({4096, 1024, 3072});
    const auto total = [&](const Method* method) {
      const AttentionVolume volume =
          attention_volume(make_parallel_plan(8, 8, method, N, M), shape, row);
      return volume.forward + volume.backward;
    };
    CHECK(total(method_named("balanced-ulysses")) <= total(method_named("dummy-head-ulysses")));
    CHECK(total(method_named("ring")) == 3 * 7 * 8192 * 2 * M * 128 * 4);
  }
  // The case of table 1: as many kv heads as query heads, 8 / P per rank if it sent to itself too.
  const int64_t T = 8192, d = 32 * 128;
  for (const int64_t P : {2, 4, 8, 16}) {
    const AttentionVolume volume =
        attention_volume(make_parallel_plan(P, P, method_named("ulysses"), 32, 32),
                         plain_attention(32, 32, 128), Packing::single(T));
    CHECK((volume.forward + volume.backward) * P == 8 * T * d * (P - 1) * 4);
  }
}

}  // namespace
}  // namespace longspan
