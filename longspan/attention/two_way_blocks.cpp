#include "longspan/attention/two_way_blocks.h"

#include <algorithm>

namespace longspan {
namespace {

int64_t rounded_down(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/// The part of the positions within a span.
Positions within_span(const Positions& positions, const TwoWaySpan& span) {
  Positions parts;
  auto run = std::ranges::partition_point(positions, [&](const PositionRun& other) {
    return other.position + (other.length - 1) * other.step < span.begin;
  });
  for (; run != positions.end() && run->position < span.end; ++run) {
    const int64_t step = run->step,
                  first = std::max<int64_t>(0, (span.begin - run->position + step - 1) / step),
                  end = std::min(run->length, (span.end - run->position + step - 1) / step);
    if (first < end) {
      parts.push_back({run->begin + first, end - first, run->position + first * step, step});
    }
  }
  return parts;
}

/// Adds the pairs of a query and a later key. The queries and the keys are one run each.
void add_later_keys(std::vector<Block>& blocks, PositionRun queries, PositionRun keys) {
  if (queries.length == 1) queries.step = keys.step;
  if (keys.length == 1) keys.step = queries.step;
  if (queries.step != keys.step) {  // no common diagonal: one query at a time
    for (int64_t i = 0; i < queries.length; ++i) {
      add_later_keys(blocks, {queries.begin + i, 1, queries.position + i * queries.step, keys.step},
                     keys);
    }
    return;
  }
  // key + j step > query + i step
  const Block block = trimmed({queries.begin, queries.length, keys.begin, keys.length, false, 0,
                               rounded_down(queries.position - keys.position, keys.step) + 1});
  if (block.q_length > 0 && block.k_length > 0) blocks.push_back(block);
}

}  // namespace

void add_two_way_blocks(std::vector<Block>& blocks, const Packing& packing,
                        const Positions& queries, const Positions& keys) {
  for (const TwoWaySpan& span : packing.two_way()) {
    const Positions of_queries = within_span(queries, span);
    if (of_queries.empty()) continue;
    const Positions of_keys = within_span(keys, span);
    for (const PositionRun& query_run : of_queries) {
      for (const PositionRun& key_run : of_keys) add_later_keys(blocks, query_run, key_run);
    }
  }
}

int64_t end_of_keys_seen(int64_t begin, int64_t end, const Packing& packing) {
  if (begin >= end) return end;
  const auto span = std::ranges::upper_bound(packing.two_way(), end - 1, {}, &TwoWaySpan::end);
  return span != packing.two_way().end() && span->begin < end ? span->end : end;
}

}  // namespace longspan
