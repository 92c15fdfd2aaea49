#include "longspan/data/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "longspan/data/permutation.h"

namespace longspan {

namespace {

/// All rows of an epoch, in the order of all groups together.
std::vector<int64_t> epoch_order(int64_t samples, int64_t batch, int groups, bool shuffle,
                                 int64_t seed, int64_t epoch) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < Loader(samples, batch, 0, groups, shuffle, seed).num_batches(); ++i) {
    for (int group = 0; group < groups; ++group) {
      const auto rows = Loader(samples, batch, group, groups, shuffle, seed).rows(epoch, i);
      order.insert(order.end(), rows.begin(), rows.end());
    }
  }
  return order;
}

}  // namespace

TEST_CASE("loader: the order of an epoch does not depend on the number of groups or rows") {
  const auto alone = epoch_order(23, 1, 1, true, 42, 3);
  for (int groups : {1, 2, 3, 8}) {
    for (int64_t batch : {1, 2, 5}) CHECK(epoch_order(23, batch, groups, true, 42, 3) == alone);
  }
}

TEST_CASE("loader: each epoch holds every sample once, in an order of its own") {
  std::set<std::vector<int64_t>> orders;
  for (int64_t seed : {42, 43}) {
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      auto order = epoch_order(50, 3, 2, true, seed, epoch);
      orders.insert(order);
      std::ranges::sort(order);
      std::vector<int64_t> all(50);
      std::iota(all.begin(), all.end(), 0);
      CHECK(order == all);
    }
  }
  CHECK(orders.size() == 8);
}

TEST_CASE("loader: without shuffling rows come as they lie, going back to an epoch repeats it") {
  std::vector<int64_t> all(10);
  std::iota(all.begin(), all.end(), 0);
  CHECK(epoch_order(10, 2, 2, false, 42, 5) == all);
  const Loader loader(10, 2, 0, 1, true, 42);
  const auto first = loader.rows(0, 1);
  loader.rows(1, 1);
  CHECK(loader.rows(0, 1) == first);
}

TEST_CASE("loader: the last micro-batch may leave a group without rows") {
  const Loader first(5, 2, 0, 2, false, 0), second(5, 2, 1, 2, false, 0);
  CHECK(first.num_batches() == 2);
  CHECK(first.rows(0, 1) == std::vector<int64_t>{4});
  CHECK(second.rows(0, 1).empty());
  CHECK(Loader(0, 2, 0, 2, true, 0).num_batches() == 0);
}

TEST_CASE("seeded_permutation: each place is equally likely") {
  // 6 orders of 3 over 6,000 streams: 1,000 each expected, standard deviation 29. Allows 5 of
  // those.
  std::vector<int> count(27, 0);
  for (int64_t stream = 0; stream < 6000; ++stream) {
    const auto order = seeded_permutation(3, 7, stream);
    ++count[order[0] * 9 + order[1] * 3 + order[2]];
  }
  for (int64_t code : {5, 7, 11, 15, 19, 21}) CHECK(std::abs(count[code] - 1000) < 5 * 29);
}

}  // namespace longspan
