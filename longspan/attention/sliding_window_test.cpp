#include "longspan/attention/sliding_window.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>

namespace longspan {
namespace {

bool sees(const Block& block, int64_t query, int64_t key) {
  const int64_t i = query - block.q_begin, j = key - block.k_begin;
  if (i < 0 || i >= block.q_length) return false;
  const KeyRange seen = keys_of(block, i);
  return j >= seen.begin && j < seen.end;
}

int64_t times_seen(const std::vector<Block>& blocks, int64_t query, int64_t key) {
  int64_t times = 0;
  for (const Block& block : blocks) times += sees(block, query, key);
  return times;
}

Positions positions_of(const std::vector<int64_t>& places) {
  Positions positions;
  for (size_t i = 0; i < places.size(); ++i) {
    add_run(positions, {static_cast<int64_t>(i), 1, places[i]});
  }
  return positions;
}

TEST_CASE("sliding window: random blocks of scattered tokens keep what is inside, and that alone") {
  std::mt19937 random(3);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int trial = 0; trial < 2000; ++trial) {
    // Scattered tokens, or tokens in steps as in striped and consecutive orders.
    const int64_t steps = between(0, 3);
    const auto ascending = [&](int64_t count) {
      std::vector<int64_t> places{between(0, 20)};
      while (std::ssize(places) < count) {
        places.push_back(places.back() + (steps > 0 ? steps : between(1, 5)));
      }
      return places;
    };
    const std::vector<int64_t> queries = ascending(24), keys = ascending(20);
    const int64_t q_begin = between(0, 20), k_begin = between(0, 16);
    Block block{q_begin, between(0, 24 - q_begin), k_begin, between(0, 20 - k_begin),
                between(0, 2) > 0};
    if (block.causal) block.offset = between(0, 6);
    const int64_t window = between(1, 40);
    CAPTURE(fmt::format("trial {} window {} steps {}", trial, window, steps));
    const std::vector<Block> parts =
        within_window({block}, window, positions_of(queries), positions_of(keys));
    if (steps > 0) CHECK(parts.size() <= 1);
    double pairs = 0;
    bool right = true;
    for (int64_t query = 0; query < 24; ++query) {
      for (int64_t key = 0; key < 20; ++key) {
        const bool inside = sees(block, query, key) && queries[query] - keys[key] < window;
        right = right && times_seen(parts, query, key) == (inside ? 1 : 0);
        pairs += inside ? 1 : 0;
      }
    }
    for (const Block& part : parts) {
      // Every query of a part sees a key, and every key is seen. A block inside the window is
      // unchanged.
      if (part.q_length == block.q_length && part.k_length == block.k_length) continue;
      right = right && part.q_length > 0 && part.k_length > 0;
      for (int64_t i = 0; i < part.q_length; ++i) right = right && keys_of(part, i).length() > 0;
      right = right && keys_of(part, 0).begin == 0 &&
              keys_of(part, part.q_length - 1).end == part.k_length;
    }
    REQUIRE(right);
    CHECK(pairs_of(parts) == pairs);
  }
}

TEST_CASE("sliding window: blocks inside are left as they are, those outside are dropped") {
  const Positions near{{0, 8, 0}}, far{{0, 8, 100}};
  const std::vector<Block> block{{0, 8, 0, 8, true}};
  const std::vector<Block> inside = within_window(block, 8, near, near);
  REQUIRE(inside.size() == 1);
  CHECK(inside[0].causal);
  CHECK(inside[0].k_length == 8);
  CHECK_FALSE(inside[0].lower);
  // An earlier rank's keys: the nearest query is 93 positions away from the nearest key.
  CHECK(within_window({{0, 8, 0, 8, false}}, 93, far, near).empty());
  const std::vector<Block> nearest = within_window({{0, 8, 0, 8, false}}, 94, far, near);
  REQUIRE(nearest.size() == 1);
  CHECK(nearest[0].q_length == 1);
  CHECK(nearest[0].k_begin == 7);
}

TEST_CASE("sliding window: a second branch goes on from its prompt") {
  const Packing packing = Packing::from_documents({{5}, {20, Fork{8, 14}}});
  const std::vector<Block> blocks = causal_blocks(packing, 4);
  for (int64_t query = 0; query < 25; ++query) {
    for (int64_t key = 0; key < 25; ++key) {
      const bool same = (query < 5) == (key < 5);
      const auto position = [](int64_t token) { return token >= 19 ? token - 6 : token; };
      const bool branches = query >= 19 && key >= 13 && key < 19;
      const int64_t apart = position(query) - position(key);
      CAPTURE(query);
      CAPTURE(key);
      CHECK(times_seen(blocks, query, key) ==
            (same && !branches && key <= query && apart < 4 ? 1 : 0));
    }
  }
  for (int64_t begin = 0; begin < 25; ++begin) {
    for (int64_t end = begin + 1; end <= 25; ++end) {
      int64_t first = begin;
      for (int64_t query = begin; query < end; ++query) {
        for (int64_t key = 0; key < first; ++key) {
          if (times_seen(blocks, query, key) > 0) first = key;
        }
      }
      CAPTURE(begin);
      CAPTURE(end);
      CHECK(first_key_seen(begin, end, packing, 4) == first);
    }
  }
}

TEST_CASE("sliding window: work grows with the row, not with its square") {
  const auto pairs = [&](int64_t length) {
    return pairs_of(causal_blocks(Packing::single(length), 64));
  };
  CHECK(pairs(4096) == 4096.0 * 64 - 64.0 * 63 / 2);
  CHECK(pairs(4096) < 2.1 * pairs(2048));
}

}  // namespace
}  // namespace longspan
