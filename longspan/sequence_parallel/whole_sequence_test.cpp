// t: tokens of a rank, T: tokens of the row, N: heads, n: some heads, H, G: elements of an input
// head and an output head.
#include "longspan/sequence_parallel/whole_sequence.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>

#include "longspan/plan/exchange_volume.h"
#include "longspan/testing/ranks.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

constexpr int64_t kIn = 3, kOut = 2;

// fp64 has 16 digits; sums of some hundred terms lose two.
constexpr double kTolerance = 1e-12;

/// A layer in which every token depends on all earlier ones of its document, on their order, and on
/// the head.
at::Tensor recurrence(const at::Tensor& x_TnH, const at::Tensor& weight_nH,
                      const Packing& packing) {
  std::vector<at::Tensor> states;
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    const int64_t length = packing.length(d);
    const at::Tensor place = at::arange(1, length + 1, at::kDouble).view({length, 1, 1}).rsqrt();
    states.push_back(at::cumsum(x_TnH.narrow(0, packing.begin(d), length) * weight_nH * place, 0));
  }
  return at::tanh(at::cat(states)).narrow(2, 0, kOut) * x_TnH.narrow(2, 1, kOut);
}

struct Solution {
  at::Tensor y_TNG, dx_TNH, dweight_NH;
};

struct Case {
  Packing row;
  at::Tensor x_TNH, weight_NH, dy_TNG;
  Solution expected;

  Case(const Packing& row, int64_t num_heads)
      : row(row),
        x_TNH(at::randn({row.num_tokens(), num_heads, kIn}, at::kDouble)),
        weight_NH(at::randn({num_heads, kIn}, at::kDouble)),
        dy_TNG(at::randn({row.num_tokens(), num_heads, kOut}, at::kDouble)) {
    const at::Tensor x = x_TNH.clone().requires_grad_(true),
                     weight = weight_NH.clone().requires_grad_(true);
    const at::Tensor y = recurrence(x, weight, row);
    y.backward(dy_TNG);
    expected = {y.detach(), x.grad(), weight.grad()};
  }
};

struct Distributed : Solution {
  Traffic traffic;
  Packing padded;
};

/// Solves one rank's part. `trains_input`: otherwise only the weights have gradients.
void solve_share(const Case& c, const SequenceParallel& strategy, const Mesh& mesh,
                 bool trains_input, std::mutex& mutex, Distributed& whole) {
  const TokenOrder order = strategy.token_order(c.row);
  const at::Tensor index =
      at::tensor(at::ArrayRef<int64_t>(order.index), at::TensorOptions(at::kLong));
  const at::Tensor padding = (index < 0).unsqueeze(-1).unsqueeze(-1);
  const auto share = [&](const at::Tensor& x_TNH, double of_padding) {
    const at::Tensor local = x_TNH.index_select(0, index.clamp_min(0));
    return at::where(padding, at::full_like(local, of_padding), local);
  };
  const at::Tensor x = share(c.x_TNH, 1000.0).requires_grad_(trains_input),
                   weight = c.weight_NH.clone().requires_grad_(true);
  const Traffic before = sequence_traffic(mesh);
  const WholeSequence sequence(strategy, order.packing, mesh.sequence);
  HeadRange seen{-1, -1};
  const at::Tensor y =
      sequence.over_whole_sequence(x, [&](const at::Tensor& x_TnH, const HeadRange& heads) {
        seen = heads;
        return recurrence(x_TnH, weight.narrow(0, heads.begin, heads.count), order.packing);
      });
  y.backward(share(c.dy_TNG, 0.0));
  const Traffic after = sequence_traffic(mesh);

  const std::lock_guard lock(mutex);
  const HeadRange own = heads_of_rank(mesh.sequence.rank(), mesh.sequence.size(), c.x_TNH.size(1));
  if (!(seen == own)) throw std::logic_error("a function is called for this rank's heads");
  whole.traffic.all_to_all += after.all_to_all - before.all_to_all;
  whole.traffic.all_gather += after.all_gather - before.all_gather;
  whole.traffic.shift += after.shift - before.shift;
  whole.padded = order.packing;
  const at::Tensor real = (index >= 0).nonzero().squeeze(1);
  const auto put = [&](at::Tensor& all, const at::Tensor& local) {
    all.index_copy_(0, index.index_select(0, real), local.index_select(0, real));
  };
  put(whole.y_TNG, y.detach());
  if (trains_input) put(whole.dx_TNH, x.grad());
  whole.dweight_NH += weight.grad();  // gradients are summed, as in the whole program
}

struct Task {
  const Case* problem;
  ParallelPlan plan;
  bool trains_input;
};

std::vector<Distributed> solve_all(const std::vector<Task>& tasks) {
  std::vector<Distributed> solutions(tasks.size());
  // Ranks that form the same groups connect once for all plans.
  std::map<std::vector<int>, std::vector<size_t>> by_groups;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto& [problem, plan, trains_input] = tasks[i];
    const auto unset = [](const at::Tensor& x) { return at::full_like(x, std::nan("")); };
    solutions[i].y_TNG = unset(problem->dy_TNG);
    solutions[i].dx_TNH = unset(problem->x_TNH);
    solutions[i].dweight_NH = at::zeros_like(problem->weight_NH);
    const bool one_group = (plan.ulysses_size == 1 || plan.ring_size == 1) &&
                           plan.window_size == 1 && plan.num_head_slices == 1;
    by_groups[one_group ? std::vector{plan.sequence_size}
                        : std::vector{plan.sequence_size, plan.ulysses_size, plan.window_size,
                                      plan.num_head_slices}]
        .push_back(i);
  }
  for (const auto& [groups, indices] : by_groups) {
    std::mutex mutex;
    testing::run_ranks(tasks[indices[0]].plan, [&](Mesh mesh) {
      if (groups.size() == 1) mesh.ring = mesh.ulysses = mesh.windows = mesh.sequence;
      for (const size_t i : indices) {
        const auto strategy = make_attention(tasks[i].plan, mesh, cpu_block_kernel());
        solve_share(*tasks[i].problem, *strategy, mesh, tasks[i].trains_input, mutex, solutions[i]);
      }
    });
  }
  return solutions;
}

ParallelPlan plan_of(const Method* method, int P, int ulysses = 0, int window = 0) {
  PlanRequest request;
  request.world_size = request.sequence_size = P;
  request.method = method;
  request.num_heads = request.num_kv_heads = 12;
  if (ulysses > 0) request.ulysses_degree = ulysses;
  if (window > 0) request.window_size = window;
  return make_parallel_plan(request);
}

TEST_CASE("whole sequence: every token order, heads that do not divide, output and gradients") {
  at::manual_seed(11);
  std::vector<Case> cases;
  for (const int64_t num_heads : {1, 3, 8}) {
    cases.emplace_back(Packing::from_lengths({13, 1, 22, 9}), num_heads);
    cases.emplace_back(Packing::from_lengths({3}), num_heads);
  }
  std::vector<ParallelPlan> plans{ParallelPlan{}};
  for (const Method* method : all_methods()) {
    for (const int P : {2, 3, 4}) plans.push_back(plan_of(method, P));
  }
  for (const Method* method : methods_that_take(kUlyssesDegree)) {
    plans.push_back(plan_of(method, 4, /*ulysses=*/2));
    if (takes(*method, kWindowSize))
      plans.push_back(plan_of(method, 4, /*ulysses=*/1, /*window=*/2));
  }
  std::vector<Task> tasks;
  for (const ParallelPlan& plan : plans) {
    for (const Case& c : cases) {
      for (const bool trains_input : {true, false}) tasks.push_back({&c, plan, trains_input});
    }
  }
  const std::vector<Distributed> solutions = solve_all(tasks);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto& [problem, plan, trains_input] = tasks[i];
    const Solution& expected = problem->expected;
    const int64_t N = problem->x_TNH.size(1);
    CAPTURE(fmt::format("{} P={}, {} heads, {} documents, input trained {}", describe_method(plan),
                        plan.sequence_size, N, problem->row.num_documents(), trains_input));
    CHECK(relative_error(solutions[i].y_TNG, expected.y_TNG) < kTolerance);
    CHECK(relative_error(solutions[i].dweight_NH, expected.dweight_NH) < kTolerance);
    if (trains_input) CHECK(relative_error(solutions[i].dx_TNH, expected.dx_TNH) < kTolerance);
    const int64_t T = solutions[i].padded.num_tokens();
    const AttentionVolume volume = whole_sequence_volume(
        plan.sequence_size, T, N, kIn * int64_t{sizeof(double)}, kOut * int64_t{sizeof(double)});
    const AttentionVolume outputs =
        whole_sequence_volume(plan.sequence_size, T, N, 0, kOut * int64_t{sizeof(double)});
    const Traffic& sent = solutions[i].traffic;
    CHECK(sent.all_to_all == volume.forward + (trains_input ? volume.backward : outputs.backward));
    CHECK(sent.all_gather + sent.shift == 0);
  }
}

TEST_CASE("whole sequence: heads of ranks follow each other and differ by one at most") {
  for (const int P : {1, 2, 3, 7}) {
    for (const int64_t N : {1, 2, 5, 7, 16}) {
      int64_t next = 0;
      for (int rank = 0; rank < P; ++rank) {
        const HeadRange heads = heads_of_rank(rank, P, N);
        CHECK(heads.begin == next);
        CHECK(heads.count >= N / P);
        CHECK(heads.count <= (N + P - 1) / P);
        next += heads.count;
      }
      CHECK(next == N);
    }
  }
}

TEST_CASE("whole sequence: rows that are not padded, and other shapes, are told") {
  const Packing row = Packing::single(5);
  testing::run_ranks(plan_of(method_named("zigzag-ring"), 2), [&](const Mesh& mesh) {
    const auto strategy =
        make_attention(plan_of(method_named("zigzag-ring"), 2), mesh, cpu_block_kernel());
    const auto throws = [](const auto& call) {
      try {
        call();
      } catch (const c10::Error&) {
        return;
      }
      throw std::logic_error("nothing was thrown");
    };
    throws([&] { WholeSequence(*strategy, row, mesh.sequence); });
    throws([&] { WholeSequence(*strategy, Packing::single(8), Group()); });
    const WholeSequence sequence(*strategy, Packing::single(8), mesh.sequence);
    const auto itself = [](const at::Tensor& x, const HeadRange&) { return x; };
    throws([&] { sequence.over_whole_sequence(at::ones({8, 2, 1}), itself); });
    const auto fewer = [](const at::Tensor& x, const HeadRange&) { return x.narrow(0, 0, 1); };
    throws([&] { sequence.over_whole_sequence(at::ones({4, 2, 1}), fewer); });
  });
}

}  // namespace
}  // namespace longspan
