#include "longspan/attention/sliding_window.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>

namespace longspan {
namespace {

bool sees(const Block& block, int64_t query, int64_t key) {
  const int64_t i = query - block.q_begin, j = key - block.k_begin;
  return i >= 0 && i < block.q_length && j >= 0 && j < block.k_length &&
         (!block.causal || j <= i + block.offset);
}

int64_t times_seen(const std::vector<Block>& blocks, int64_t query, int64_t key) {
  int64_t times = 0;
  for (const Block& block : blocks) times += sees(block, query, key);
  return times;
}

TEST_CASE(
    "sliding window: random blocks of scattered tokens keep what is inside, and little else") {
  std::mt19937 random(3);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto ascending = [&](int64_t count) {
    std::vector<int64_t> places{between(0, 20)};
    while (std::ssize(places) < count) places.push_back(places.back() + between(1, 5));
    return places;
  };
  for (int trial = 0; trial < 1000; ++trial) {
    const std::vector<int64_t> queries = ascending(24), keys = ascending(20);
    const int64_t q_begin = between(0, 20), k_begin = between(0, 16);
    Block block{q_begin, between(0, 24 - q_begin), k_begin, between(0, 20 - k_begin),
                between(0, 2) > 0};
    if (block.causal) block.offset = between(0, 6);
    const int64_t window = between(1, 40);
    CAPTURE(fmt::format("trial {} window {}", trial, window));
    const std::vector<Block> parts = within_window(
        {block}, window, [&](int64_t query) { return queries[query]; },
        [&](int64_t key) { return keys[key]; });
    bool right = true;
    for (int64_t query = 0; query < 24; ++query) {
      for (int64_t key = 0; key < 20; ++key) {
        const int64_t apart = queries[query] - keys[key];
        const int64_t before = sees(block, query, key), after = times_seen(parts, query, key);
        right = right && after <= before && (apart >= window || after == before) &&
                (apart < 2 * window || after == 0);
      }
    }
    REQUIRE(right);
  }
}

TEST_CASE("sliding window: blocks inside are left as they are, those outside are dropped") {
  const auto place = [](int64_t token) { return token; };
  const auto far = [](int64_t token) { return token + 100; };
  const std::vector<Block> block{{0, 8, 0, 8, true}};
  const std::vector<Block> inside = within_window(block, 8, place, place);
  REQUIRE(inside.size() == 1);
  CHECK(inside[0].causal);
  CHECK(inside[0].k_length == 8);
  // An earlier rank's keys: the nearest query is 93 places away from the nearest key.
  CHECK(within_window({{0, 8, 0, 8, false}}, 93, far, place).empty());
  const std::vector<Block> nearest = within_window({{0, 8, 0, 8, false}}, 94, far, place);
  REQUIRE(nearest.size() == 1);
  CHECK(nearest[0].q_length == 1);
  CHECK(nearest[0].k_begin == 7);
}

TEST_CASE("sliding window: work grows with the row, not with its square") {
  const auto place = [](int64_t token) { return token; };
  const auto pairs = [&](int64_t length) {
    return pairs_of(within_window({{0, length, 0, length, true}}, 64, place, place));
  };
  CHECK(pairs(4096) < 2.1 * pairs(2048));
  CHECK(pairs(4096) <= 4096.0 * 2 * 64);
  CHECK(pairs(4096) >= 4096.0 * 64 - 64.0 * 64 / 2);
}

}  // namespace
}  // namespace longspan
