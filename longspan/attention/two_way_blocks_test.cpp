#include "longspan/attention/two_way_blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

namespace longspan {
namespace {

/// Random selections of a row: runs of ascending places, with steps of several sizes.
Positions random_selection(std::mt19937& random, int64_t num_tokens) {
  Positions runs;
  int64_t token = 0;
  for (int64_t place = random() % 4; place < num_tokens;) {
    const int64_t step = 1 + random() % 3, most = (num_tokens - place + step - 1) / step,
                  length = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
    runs.push_back({token, length, place, step});
    token += length;
    place += (length - 1) * step + 1 + random() % 5;
  }
  return runs;
}

std::vector<int64_t> places_of(const Positions& selection) {
  std::vector<int64_t> places;
  for (const PositionRun& run : selection) {
    for (int64_t i = 0; i < run.length; ++i) places.push_back(run.position + i * run.step);
  }
  return places;
}

TEST_CASE("two-way blocks: later keys of a query's span, once, in any selections of a row") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    constexpr int64_t kTokens = 30;
    std::vector<TwoWaySpan> spans;
    for (int64_t begin = random() % 5; begin < kTokens;) {
      const int64_t end = std::min<int64_t>(kTokens, begin + 1 + random() % 12);
      spans.push_back({begin, end});
      begin = end + random() % 4;
    }
    const Packing row = Packing::from_documents({{kTokens, {}, spans}});
    const Positions queries = random_selection(random, kTokens),
                    keys = random_selection(random, kTokens);
    std::vector<Block> blocks;
    add_two_way_blocks(blocks, row, queries, keys);
    const std::vector<int64_t> query_places = places_of(queries), key_places = places_of(keys);
    std::vector<int> counts(query_places.size() * key_places.size());
    for (const Block& block : blocks) {
      for (int64_t i = 0; i < block.q_length; ++i) {
        const KeyRange seen = keys_of(block, i);
        for (int64_t j = seen.begin; j < seen.end; ++j) {
          counts.at((block.q_begin + i) * std::ssize(key_places) + block.k_begin + j) += 1;
        }
      }
    }
    bool right = true;
    for (size_t i = 0; i < query_places.size(); ++i) {
      for (size_t j = 0; j < key_places.size(); ++j) {
        const int64_t query = query_places[i], key = key_places[j];
        const bool sees = query < key && std::ranges::any_of(
                                             spans,
                                             [&](const TwoWaySpan& span) {
                                               return span.begin <= query && key < span.end;
                                             });
        right = right && counts[i * key_places.size() + j] == (sees ? 1 : 0);
      }
    }
    CHECK(right);
  }
}

TEST_CASE("two-way blocks: keys end with the span that a cut is in") {
  const Packing row = Packing::from_documents({{10, {}, {{2, 6}, {6, 8}}}, {4, {}, {{0, 4}}}});
  const int64_t ends[] = {1, 2, 6, 6, 6, 6, 8, 8, 9, 10, 14, 14, 14, 14};
  for (int64_t end = 1; end <= 14; ++end) {
    CAPTURE(end);
    CHECK(end_of_keys_seen(0, end, row) == ends[end - 1]);
  }
  CHECK(end_of_keys_seen(4, 4, row) == 4);
}

}  // namespace
}  // namespace longspan
