#include "longspan/comm/group.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "longspan/comm/differentiable.h"
#include "longspan/comm/link.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

// Groups use Gloo here. group_link_test compares the other links with it.
template <typename Ranks>
void run_ranks(const Ranks& ranks, const std::function<void(const Mesh& mesh)>& body) {
  testing::run_ranks(ranks, body, traits_of(Link::kGloo));
}

// CHECK is not thread-safe.
#define RANK_CHECK(condition) \
  if (!(condition)) throw std::runtime_error("rank check failed: " #condition)

TEST_CASE("group: a default group is this rank alone") {
  Group alone;
  at::Tensor x = at::randn({4, 3});
  CHECK(alone.rank() == 0);
  CHECK(alone.size() == 1);
  CHECK(alone.all_to_all(x).wait().is_same(x));
  CHECK(alone.all_gather(x).wait().is_same(x));
  CHECK(alone.reduce_scatter(x).wait().is_same(x));
  CHECK(alone.shift({x}).wait().is_same(x));
  CHECK(alone.gather_text("a") == std::vector<std::string>{"a"});
  CHECK(alone.traffic().all_to_all == 0);
}

TEST_CASE("group: what a collective needed is free as soon as it was waited for") {
  run_ranks(2, [&](const Mesh& mesh) {
    const AllocationCounter counter(AllocationCounter::Of::kThisThread);
    for (int i = 0; i < 300; ++i) {
      {
        Pending exchange = mesh.world.all_to_all(at::ones({64, 64}));
        Pending sum = mesh.world.sum_async_(at::ones({64, 64}));
        exchange.wait();
        sum.wait();
      }
      RANK_CHECK(counter.live_bytes() == 0);
    }
  });
}

TEST_CASE("group: collectives on three ranks, fp64, bf16 and int64") {
  for (at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kLong}) {
    run_ranks(3, [&](const Mesh& mesh) {
      const Group& group = mesh.world;
      const int rank = group.rank();
      auto filled = [&](at::IntArrayRef shape, double value) {
        return at::full(shape, value, at::TensorOptions().dtype(dtype));
      };
      // Rank r sends r + p + 1 rows of value 10 r + p to rank p.
      std::vector<at::Tensor> parts;
      std::vector<int64_t> send_rows, recv_rows;
      for (int p = 0; p < 3; ++p) {
        send_rows.push_back(rank + p + 1);
        recv_rows.push_back(rank + p + 1);
        parts.push_back(filled({rank + p + 1, 2}, 10 * rank + p));
      }
      at::Tensor received = group.all_to_all(at::cat(parts), send_rows, recv_rows).wait();
      parts.clear();
      for (int p = 0; p < 3; ++p) parts.push_back(filled({rank + p + 1, 2}, 10 * p + rank));
      RANK_CHECK(received.equal(at::cat(parts)));
      const int64_t row_bytes = 2 * received.element_size();
      RANK_CHECK(group.traffic().all_to_all == (3 + 3 * rank + 3 - (2 * rank + 1)) * row_bytes);

      at::Tensor gathered = group.all_gather(filled({2, 1}, rank)).wait();
      RANK_CHECK(
          gathered.equal(at::cat({filled({2, 1}, 0), filled({2, 1}, 1), filled({2, 1}, 2)})));
      RANK_CHECK(group.traffic().all_gather == 2 * 2 * received.element_size());

      at::Tensor share = group.reduce_scatter(at::arange(6, received.options()) + rank).wait();
      RANK_CHECK(share.equal(at::arange(2 * rank, 2 * rank + 2, received.options()) * 3 + 3));

      // Two shifts in flight do not mix.
      Pending one = group.shift({filled({4}, rank), filled({2}, 100 + rank)});
      Pending two = group.shift({filled({4}, 50 + rank)}, -1);
      RANK_CHECK(two.wait().equal(filled({4}, 50 + (rank + 1) % 3)));
      std::vector<at::Tensor> shifted = one.wait_all();
      RANK_CHECK(shifted[0].equal(filled({4}, (rank + 2) % 3)));
      RANK_CHECK(shifted[1].equal(filled({2}, 100 + (rank + 2) % 3)));
      RANK_CHECK(group.traffic().shift == 10 * received.element_size());

      at::Tensor sum = filled({4, 2}, rank + 1).t();  // not contiguous
      group.sum_(sum);
      RANK_CHECK(sum.equal(filled({2, 4}, 6)));

      at::Tensor from_two = filled({3}, rank);
      group.broadcast_(from_two, 2);
      RANK_CHECK(from_two.equal(filled({3}, 2)));
      group.barrier();
      // Texts about as long as the bytes that travel with a length, and much longer ones.
      const auto long_text = [](size_t length) { return std::string(length, 'l') + '\0' + "end"; };
      for (const std::vector<std::string>& texts : {std::vector<std::string>{"", "rank one", "x"},
                                                    {long_text(244), "", long_text(243)},
                                                    {long_text(245), long_text(244), ""},
                                                    {"short", long_text(100000), long_text(300)}}) {
        RANK_CHECK(group.gather_text(texts[rank]) == texts);
      }
    });
  }
}

TEST_CASE("group: a rank may send nothing, or receive nothing") {
  run_ranks(3, [](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    // All rows go to rank 1, and rank 0 has none.
    at::Tensor received =
        mesh.world
            .all_to_all(at::full({rank, 2}, rank, at::kFloat), {0, rank, 0},
                        rank == 1 ? std::vector<int64_t>{0, 1, 2} : std::vector<int64_t>{0, 0, 0})
            .wait();
    RANK_CHECK(received.size(0) == (rank == 1 ? 3 : 0));
    if (rank == 1) RANK_CHECK(received.select(1, 0).equal(at::tensor({1.f, 2.f, 2.f})));
    RANK_CHECK(mesh.world.traffic().all_to_all == (rank == 2 ? 2 * 2 * 4 : 0));
  });
}

TEST_CASE("group: subgroups of 2 data x (2 ring x 2 ulysses)") {
  ParallelPlan plan;
  plan.world_size = 8;
  plan.data_size = 2;
  plan.sequence_size = 4;
  plan.ring_size = plan.ulysses_size = 2;
  run_ranks(plan, [](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    auto members = [&](const Group& group) {
      at::Tensor all = group.all_gather(at::full({1}, rank, at::kLong)).wait();
      return std::vector<int64_t>(all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel());
    };
    const int64_t first = rank / 4 * 4, inside = rank % 4;
    RANK_CHECK(
        (members(mesh.sequence) == std::vector<int64_t>{first, first + 1, first + 2, first + 3}));
    RANK_CHECK((members(mesh.data) == std::vector<int64_t>{inside, inside + 4}));
    RANK_CHECK(
        (members(mesh.ring) == std::vector<int64_t>{first + inside % 2, first + inside % 2 + 2}));
    const int64_t pair = first + inside / 2 * 2;
    RANK_CHECK((members(mesh.ulysses) == std::vector<int64_t>{pair, pair + 1}));
  });
}

TEST_CASE("group: a rank that fails ends the others, and its own error is reported") {
  const auto start = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::vector<std::string> messages;
  CHECK_THROWS_WITH_AS(run_ranks(3,
                                 [&](const Mesh& mesh) {
                                   mesh.world.barrier();
                                   if (mesh.world.rank() == 1)
                                     throw std::domain_error("the first error");
                                   try {
                                     at::Tensor x = at::ones({100});
                                     mesh.world.all_to_all(at::ones({3})).wait();
                                   } catch (const CommunicationError& error) {
                                     std::lock_guard lock(mutex);
                                     messages.push_back(error.what());
                                     throw;
                                   }
                                 }),
                       "the first error", std::domain_error);
  // They did not wait as long as a collective's timeout in run_ranks.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].find("of 3 of the world group: all_to_all did not finish") !=
        std::string::npos);
}

TEST_CASE("group: waits for a rank that comes late are measured") {
  constexpr std::chrono::milliseconds kLate{400};
  std::atomic<bool> waits{false};
  double waited[2] = {};
  run_ranks(2, [&](const Mesh& mesh) {
    const double before = mesh.collectives->waited_seconds();
    if (mesh.world.rank() == 1) {
      while (!waits) std::this_thread::yield();
      std::this_thread::sleep_for(kLate);
    }
    Pending sum = mesh.world.all_to_all(at::ones({2}));
    waits = true;
    sum.wait();
    waited[mesh.world.rank()] = mesh.collectives->waited_seconds() - before;
  });
  // A busy machine shortens the wait of rank 0, which begins after `waits`.
  CHECK(waited[0] > 0.1);
  CHECK(waited[1] >= 0.0);
}

// Algorithm 2 of the Plug & Play SP paper: w = 1, x = 2 on rank 0 and 3 on rank 1, y = sum over
// ranks of w x, loss = 2 y - 1. Undistributed, dloss/dw = 2 (2 + 3) = 10.
TEST_CASE("differentiable: algorithm 2, gradients 4 and 6, whose SUM is 10") {
  double gradients[2] = {}, total[2] = {}, losses[2] = {};
  run_ranks(2, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    at::Tensor w = at::ones({}).requires_grad_(true);
    at::Tensor loss = 2 * sum_over(w * (2.0 + rank), mesh.world) - 1;
    loss.backward();
    at::Tensor gradient = w.grad().clone();
    gradients[rank] = gradient.item<double>();
    mesh.world.sum_(gradient);
    total[rank] = gradient.item<double>();
    losses[rank] = loss.item<double>();
  });
  CHECK(losses[0] == 9);
  CHECK(losses[1] == 9);
  CHECK(gradients[0] == 4);
  CHECK(gradients[1] == 6);
  CHECK(total[0] == 10);
  CHECK(total[1] == 10);
}

}  // namespace
}  // namespace longspan
