// Padding is minimal for each method, and every token has exactly one place.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "longspan/rows/padding.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

std::vector<TokenOrder> orders_of(int ring, int ulysses, const Packing& packing) {
  ParallelPlan plan;
  plan.world_size = plan.sequence_size = ring * ulysses;
  plan.ring_size = ring;
  plan.ulysses_size = ulysses;
  plan.method = method_named("usp");
  std::vector<TokenOrder> orders(plan.world_size);
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    orders[mesh.world.rank()] =
        make_attention(plan, mesh, cpu_block_kernel())->token_order(packing);
  });
  return orders;
}

TEST_CASE("token order: every token once, equal shares") {
  const Packing packing = Packing::from_lengths({5, 1, 12});
  for (const auto& [ring, ulysses] : {std::pair{1, 1}, {1, 3}, {1, 4}, {2, 1}, {3, 1}, {2, 3}}) {
    const auto orders = orders_of(ring, ulysses, packing);
    std::vector<int64_t> seen;
    for (const TokenOrder& order : orders) {
      CHECK(order.index.size() * orders.size() == order.packing.num_tokens());
      CHECK(order.packing == orders[0].packing);
      for (int64_t token : order.index) {
        if (token >= 0) seen.push_back(token);
      }
    }
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> all(packing.num_tokens());
    std::iota(all.begin(), all.end(), 0);
    CHECK(seen == all);
  }
}

TEST_CASE("token order: Ulysses cuts the row, padding is a document of its own at the tail") {
  const auto orders = orders_of(1, 4, Packing::from_lengths({5, 1, 12}));
  CHECK(orders[0].packing == Packing::from_lengths({5, 1, 12, 2}));
  CHECK(orders[1].index == std::vector<int64_t>{5, 6, 7, 8, 9});
  CHECK(orders[3].index == std::vector<int64_t>{15, 16, 17, -1, -1});
  CHECK(orders_of(1, 3, Packing::from_lengths({5, 1, 12}))[0].packing.num_documents() == 3);
}

TEST_CASE("token order: the ring holds chunks r and 2R-1-r of each document") {
  const auto orders = orders_of(2, 1, Packing::from_lengths({8, 3}));
  CHECK(orders[0].packing == Packing::from_lengths({8, 4}));
  CHECK(orders[0].index == std::vector<int64_t>{0, 1, 6, 7, 8, -1});
  CHECK(orders[1].index == std::vector<int64_t>{2, 3, 4, 5, 9, 10});
}

TEST_CASE("padding: nothing is added where nothing is needed") {
  const Packing packing = Packing::from_lengths({4, 8});
  CHECK(pad_tail(packing, 6) == packing);
  CHECK(pad_documents(packing, 4) == packing);
  CHECK(pad_documents(packing, 3) == Packing::from_lengths({6, 9}));
}

TEST_CASE("padding: forks stay where they are; padding of a document is in its second branch") {
  const Packing packing = Packing::from_documents({{5, Fork{1, 3}}, {2}, {7, Fork{4, 6}}});
  CHECK((pad_tail(packing, 5) ==
         Packing::from_documents({{5, Fork{1, 3}}, {2}, {7, Fork{4, 6}}, {1}})));
  CHECK((pad_documents(packing, 4) ==
         Packing::from_documents({{8, Fork{1, 3}}, {4}, {8, Fork{4, 6}}})));
  const auto orders = orders_of(2, 2, packing);
  CHECK((orders[3].packing == Packing::from_documents({{8, Fork{1, 3}}, {4}, {8, Fork{4, 6}}})));
}

}  // namespace
}  // namespace longspan
