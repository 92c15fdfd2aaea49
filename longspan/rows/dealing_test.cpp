#include "longspan/rows/dealing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

namespace longspan {
namespace {

/// Work that a degree divides, with a cost of sharing.
double seconds(int64_t length, int degree) {
  const double n = static_cast<double>(length);
  return (n + n * n / 16384) / degree * (degree == 1 ? 1.0 : 1.05);
}

std::vector<std::vector<int64_t>> log_normal_lengths(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(std::log(6000.0), 1.2);
  std::vector<std::vector<int64_t>> examples;
  for (int i = 0; i < count; ++i) {
    examples.push_back({std::clamp<int64_t>(std::llround(std::exp(normal(random))), 1024, 131072)});
  }
  return examples;
}

DealingRules rules_of(int num_ranks, int64_t tokens_per_rank) {
  DealingRules rules{.ranks = {.num_ranks = num_ranks, .ranks_per_machine = num_ranks},
                     .seconds = seconds};
  rules.tokens_per_rank = tokens_per_rank;
  for (int degree = 1; degree <= num_ranks; ++degree) rules.degrees.push_back(degree);
  return rules;
}

double work_of(const std::vector<std::vector<int64_t>>& examples) {
  double work = 0;
  for (const auto& lengths : examples) work += seconds(lengths[0], 1);
  return work;
}

}  // namespace

TEST_CASE("dealing: each example is in one row, whose ranks hold it") {
  for (const bool together : {false, true}) {
    for (const int num_ranks : {1, 3, 4, 8}) {
      for (const uint64_t seed : {1, 2, 3}) {
        const auto examples = log_normal_lengths(40, seed);
        DealingRules rules = rules_of(num_ranks, 131072 / num_ranks);
        rules.together = together;
        const Dealing dealing = deal(examples, rules);
        std::multiset<int64_t> dealt;
        for (const DealtRow& row : dealing.rows) {
          CHECK(std::ranges::count(rules.ranks.ranges(row.ranks.count), row.ranks) == 1);
          int64_t tokens = 0;
          for (const int64_t example : row.examples) {
            dealt.insert(example);
            tokens += examples[example][0];
          }
          CHECK(tokens <= rules.tokens_per_rank * row.ranks.count);
        }
        std::multiset<int64_t> all;
        for (int64_t i = 0; i < 40; ++i) all.insert(i);
        CHECK(dealt == all);
      }
    }
  }
}

TEST_CASE("dealing: rows of 1k to 128k tokens give all ranks equal work") {
  for (const bool together : {false, true}) {
    for (const int num_ranks : {4, 8, 16}) {
      for (const uint64_t seed : {11, 12, 13, 14}) {
        CAPTURE(together);
        CAPTURE(num_ranks);
        const auto examples = log_normal_lengths(16 * num_ranks, seed);
        DealingRules rules = rules_of(num_ranks, 131072 / num_ranks);
        rules.together = together;
        const Dealing dealing = deal(examples, rules);
        const double most = together ? 1.2 : 1.1;
        CHECK(dealing.imbalance() <= most);
        // Sharing costs 5 % here, of the rows that are shared.
        CHECK(dealing.end <= most * 1.05 * work_of(examples) / num_ranks);
      }
    }
  }
}

TEST_CASE("dealing: a long example gets more ranks than short ones") {
  // Three quarters of all tokens: three ranks, beside one rank for the others.
  for (const bool together : {false, true}) {
    const DealingRules rules{
        .ranks = {.num_ranks = 4, .ranks_per_machine = 4},
        .degrees = {1, 2, 3, 4},
        .together = together,
        .seconds = [](int64_t length, int degree) { return static_cast<double>(length) / degree; }};
    const Dealing dealing = deal({{300}, {50}, {25}, {25}}, rules);
    REQUIRE(dealing.rows.size() == 2);
    CHECK(dealing.rows[0].ranks == RankRange{0, 3});
    CHECK(dealing.rows[0].examples == std::vector<int64_t>{0});
    CHECK(dealing.rows[1].ranks == RankRange{3, 1});
    CHECK(dealing.rows[1].examples == std::vector<int64_t>{1, 2, 3});
    CHECK(dealing.imbalance() == 1.0);
    CHECK(dealing.end == 100.0);
  }
}

TEST_CASE("dealing: groups of a fixed number of ranks") {
  DealingRules rules{.ranks = {.num_ranks = 6, .ranks_per_machine = 6},
                     .degrees = {2},
                     .examples_per_row = 2,
                     .seconds = seconds};
  const auto examples = log_normal_lengths(31, 5);
  const Dealing dealing = deal(examples, rules);
  size_t num_examples = 0;
  for (const DealtRow& row : dealing.rows) {
    CHECK(row.ranks.count == 2);
    CHECK(row.ranks.first % 2 == 0);
    CHECK(row.examples.size() <= 2);
    num_examples += row.examples.size();
  }
  CHECK(num_examples == 31);
}

TEST_CASE("dealing: ranks that compute together wait for the longest row of a turn") {
  const DealingRules rules{
      .ranks = {.num_ranks = 2, .ranks_per_machine = 2},
      .degrees = {1},
      .examples_per_row = 1,
      .together = true,
      .seconds = [](int64_t length, int) { return static_cast<double>(length); }};
  const Dealing dealing = deal({{8}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}}, rules);
  CHECK(dealing.end == 8 + 4);
  CHECK(dealing.imbalance() == doctest::Approx(12.0 * 2 / 16));
  // A turn takes short examples up to the time of its longest row.
  DealingRules packing = rules;
  packing.examples_per_row = INT64_MAX;
  std::vector<std::vector<int64_t>> examples(21, {1});
  examples[0] = {10};
  CHECK(deal(examples, packing).end <= 20);
}

TEST_CASE("dealing: an example that no ranks hold gets all of them") {
  const Dealing dealing = deal({{5000}}, rules_of(4, 1000));
  REQUIRE(dealing.rows.size() == 1);
  CHECK(dealing.rows[0].ranks == RankRange{0, 4});
}

TEST_CASE("dealing: ranges of ranks are inside of machines, or of whole machines") {
  const RanksOfRun ranks{.num_ranks = 24, .ranks_per_machine = 8};
  const auto begins = [&](int degree) {
    std::vector<int> found;
    for (const RankRange& range : ranks.ranges(degree)) found.push_back(range.first);
    return found;
  };
  CHECK(begins(3) == std::vector<int>{0, 3, 5, 8, 11, 13, 16, 19, 21});
  CHECK(begins(5) == std::vector<int>{0, 3, 8, 11, 16, 19});
  CHECK(begins(8) == std::vector<int>{0, 8, 16});
  CHECK(begins(9).empty());
  CHECK(begins(16) == std::vector<int>{0, 8});
  CHECK(begins(24) == std::vector<int>{0});
  CHECK(RanksOfRun{7, 7}.ranges(5) == std::vector<RankRange>{{0, 5}, {2, 5}});
}

TEST_CASE("dealing: turns together") {
  const Dealing dealing{.rows = {{{0}, {0, 2}}, {{1}, {2, 1}}, {{2}, {2, 1}}, {{3}, {1, 2}}},
                        .seconds = {1, 1, 1}};
  using Turns = std::vector<std::optional<size_t>>;
  CHECK(turns_of(dealing, 0, false) == Turns{0});
  CHECK(turns_of(dealing, 1, false) == Turns{0, 3});
  CHECK(turns_of(dealing, 2, false) == Turns{1, 2, 3});
  CHECK(turns_of(dealing, 0, true) == Turns{0, std::nullopt, std::nullopt});
  CHECK(turns_of(dealing, 1, true) == Turns{0, std::nullopt, 3});
  CHECK(turns_of(dealing, 2, true) == Turns{1, 2, 3});
}

TEST_CASE("dealing: a step without examples") {
  const Dealing dealing = deal({}, rules_of(3, 100));
  CHECK(dealing.rows.empty());
  CHECK(dealing.imbalance() == 1.0);
  CHECK(turns_of(dealing, 1, true).empty());
}

}  // namespace longspan
