#include "longspan/attention/masked_rectangles.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "longspan/attention/block_kernel.h"

namespace longspan {
namespace {

/// The number of blocks that hold each pair of a query and a key.
std::vector<std::vector<int>> counts_of(const std::vector<Block>& blocks, int64_t num_queries,
                                        int64_t num_keys) {
  std::vector<std::vector<int>> counts(num_queries, std::vector<int>(num_keys, 0));
  for (const Block& block : blocks) {
    for (int64_t i = 0; i < block.q_length; ++i) {
      for (int64_t j = 0; j < block.k_length; ++j) {
        if (!block.causal || j <= i + block.offset)
          counts[block.q_begin + i][block.k_begin + j] += 1;
      }
    }
  }
  return counts;
}

}  // namespace

TEST_CASE("masked rectangles: what is left of random blocks is each pair outside of them, once") {
  constexpr int64_t kQueries = 24, kKeys = 20;
  std::mt19937 random(5);
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int trial = 0; trial < 3000; ++trial) {
    std::vector<Block> blocks;
    for (int64_t query = between(0, 4); query < kQueries;) {
      const int64_t k_begin = between(0, kKeys);
      Block block{query, between(0, kQueries - query), k_begin, between(0, kKeys - k_begin),
                  between(0, 3) > 0};
      if (block.causal) block.offset = between(0, 6);
      blocks.push_back(block);
      query += block.q_length + between(0, 2);
      if (block.q_length == 0) ++query;
    }
    std::vector<MaskedRectangle> masked;
    // Masked rectangles may begin before the first query and end behind the last.
    for (int64_t query = between(-5, kQueries); query < kQueries;) {
      const int64_t q_end = query + between(1, 10), k_begin = between(-5, kKeys);
      masked.push_back({query, q_end, k_begin, k_begin + between(1, 12)});
      query = q_end + between(0, 3);
    }
    auto expected = counts_of(blocks, kQueries, kKeys);
    for (const MaskedRectangle& rectangle : masked) {
      for (int64_t i = std::max<int64_t>(0, rectangle.q_begin);
           i < std::min(kQueries, rectangle.q_end); ++i)
        for (int64_t j = std::max<int64_t>(0, rectangle.k_begin);
             j < std::min(kKeys, rectangle.k_end); ++j)
          expected[i][j] = 0;
    }
    const std::vector<Block> left = without_masked_pairs(blocks, {{masked}});
    for (const Block& block : left) REQUIRE(block.offset >= 0);
    REQUIRE(counts_of(left, kQueries, kKeys) == expected);

    const auto rounds = rounds_of(left);
    std::vector<Block> in_rounds;
    for (const auto& round : rounds) {
      std::vector<int> times(kQueries, 0);
      for (const Block& block : round) {
        in_rounds.push_back(block);
        for (int64_t i = 0; i < block.q_length; ++i) times[block.q_begin + i] += 1;
      }
      REQUIRE(*std::max_element(times.begin(), times.end()) == 1);
    }
    REQUIRE(counts_of(in_rounds, kQueries, kKeys) == expected);
    REQUIRE(rounds.size() <= 2);  // no query is in more than two blocks
  }
}

TEST_CASE("masked rectangles: a forked document is three blocks") {
  const Packing packing = Packing::from_documents({{4}, {10, Fork{3, 6}}, {2}});
  const auto token = [](int64_t token) { return token; };
  const MaskedRectangles masked = masked_rectangles_of(packing, token, token);
  CHECK(masked.levels == std::vector<std::vector<MaskedRectangle>>{{{10, 14, 7, 10}}});
  CHECK_FALSE(masked.joins);
  const std::vector<Block> blocks = causal_blocks(packing);
  REQUIRE(blocks.size() == 5);
  const auto text = [](const Block& b) {
    return fmt::format("{}+{} {}+{} {} {}", b.q_begin, b.q_length, b.k_begin, b.k_length, b.causal,
                       b.offset);
  };
  CHECK(text(blocks[1]) == "4+6 4+6 true 0");    // the prompt and branch A
  CHECK(text(blocks[2]) == "10+4 4+3 false 0");  // branch B over the prompt
  CHECK(text(blocks[3]) == "10+4 10+4 true 0");  // and over itself
}

TEST_CASE(
    "masked rectangles: a tree hides earlier branches at each depth, and a prompt is one block") {
  // 0-3, of it 3-5 and 5-12; of the latter 7-9 and 9-12; of the first 12-14
  const Packing packing =
      Packing::from_documents({{14, {{0, kNoParent}, {3, 0}, {5, 0}, {7, 2}, {9, 2}, {12, 0}}}});
  const auto token = [](int64_t token) { return token; };
  const MaskedRectangles masked = masked_rectangles_of(packing, token, token);
  CHECK(masked.levels == std::vector<std::vector<MaskedRectangle>>{{{5, 12, 3, 5}, {12, 14, 3, 12}},
                                                                   {{9, 12, 7, 9}}});
  const std::vector<Block> blocks = causal_blocks(packing);
  std::vector<std::vector<int>> expected(14, std::vector<int>(14, 0));
  const std::vector<TreeSegment>& tree = packing.tree(0);
  for (const TreeSegment& segment : tree) {
    for (int64_t query = segment.begin; query < segment.end; ++query) {
      for (const TreeSegment* seen = &segment;; seen = &tree[seen->parent]) {
        for (int64_t key = seen->begin; key < std::min(seen->end, query + 1); ++key) {
          expected[query][key] = 1;
        }
        if (seen->parent == kNoParent) break;
      }
    }
  }
  CHECK(counts_of(blocks, 14, 14) == expected);
  // Later branches see the prompt by one block.
  CHECK(std::ranges::count_if(blocks, [](const Block& block) {
          return !block.causal && block.k_begin == 0 && block.q_begin == 5 && block.q_length == 9;
        }) == 1);
}

}  // namespace longspan
