#include "longspan/attention/sliding_window.h"

#include <algorithm>
#include <iterator>

#include "longspan/attention/two_way_blocks.h"

namespace longspan {
namespace {

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// The runs of the tokens [begin, end), cut to that range.
Positions runs_in(const Positions& positions, int64_t begin, int64_t end) {
  Positions runs;
  auto run = std::upper_bound(
      positions.begin(), positions.end(), begin,
      [](int64_t token, const PositionRun& other) { return token < other.begin + other.length; });
  for (; run != positions.end() && run->begin < end; ++run) {
    const int64_t first = std::max(begin, run->begin),
                  last = std::min(end, run->begin + run->length);
    if (first >= last) continue;
    runs.push_back(
        {first, last - first, run->position + (first - run->begin) * run->step, run->step});
  }
  return runs;
}

int64_t last_position(const PositionRun& run) { return run.position + (run.length - 1) * run.step; }

// Adds the parts of a block inside the window. Its queries and its keys are one run each.
void add_within(std::vector<Block>& parts, const Block& block, int64_t window, PositionRun queries,
                PositionRun keys) {
  if (queries.length == 1) queries.step = keys.step;
  if (keys.length == 1) keys.step = queries.step;
  if (queries.step != keys.step) {  // no common diagonal: one query at a time
    for (int64_t i = 0; i < queries.length; ++i) {
      add_within(parts, block, window,
                 {queries.begin + i, 1, queries.position + i * queries.step, keys.step}, keys);
    }
    return;
  }
  std::vector<Block> whole;
  add_part(whole, block, queries.begin, queries.begin + queries.length, keys.begin - block.k_begin,
           keys.begin + keys.length - block.k_begin);
  for (Block& part : whole) {
    const int64_t query = queries.position + (part.q_begin - queries.begin) * queries.step,
                  key = keys.position + (part.k_begin - keys.begin) * keys.step;
    // query + i step - (key + j step) < window
    part.lower = -floor_of(window - 1 - (query - key), queries.step);
    part = trimmed(part);
    if (part.q_length > 0 && part.k_length > 0) parts.push_back(part);
  }
}

int64_t document_of(const Packing& packing, int64_t token) {
  const auto& ends = packing.boundaries();
  return std::upper_bound(ends.begin(), ends.end(), token) - ends.begin() - 1;
}

/// Consecutive tokens of a document whose positions are consecutive too.
struct PositionRange {
  int64_t end;    // in the row
  int64_t shift;  // place minus position
};
PositionRange run_of_positions(const Packing& packing, int64_t document, int64_t place) {
  const std::vector<TreeSegment>& tree = packing.tree(document);
  if (tree.empty()) return {packing.end(document), 0};
  const int64_t begin = packing.begin(document);
  auto segment = std::ranges::upper_bound(tree, place - begin, {}, &TreeSegment::begin) - 1;
  const int64_t shift = segment->shift;
  while (segment + 1 != tree.end() && (segment + 1)->shift == shift) ++segment;
  return {begin + segment->end, shift};
}

}  // namespace

void add_run(Positions& positions, const PositionRun& run) {
  if (run.length <= 0) return;
  if (!positions.empty()) {
    PositionRun& last = positions.back();
    const int64_t apart = run.position - last_position(last);
    const bool goes_on = (last.length == 1 || apart == last.step) &&
                         (run.length == 1 || apart == run.step) && apart > 0;
    if (goes_on && last.begin + last.length == run.begin) {
      last.step = apart;
      last.length += run.length;
      return;
    }
  }
  positions.push_back(run);
}

Positions window_positions(const Positions& places, const Packing& packing) {
  if (!packing.has_forks()) return places;
  Positions positions;
  for (const PositionRun& run : places) {
    // Cuts runs where positions do not continue.
    for (int64_t i = 0; i < run.length;) {
      const int64_t place = run.position + i * run.step;
      const int64_t document = document_of(packing, place);
      const auto [end, shift] = run_of_positions(packing, document, place);
      const int64_t count = std::min(run.length - i, (end - place + run.step - 1) / run.step);
      positions.push_back({run.begin + i, count, place - shift, run.step});
      i += count;
    }
  }
  return positions;
}

Positions window_positions(int64_t begin, int64_t length, const Packing& packing) {
  Positions places;
  add_run(places, {0, length, begin});
  return window_positions(places, packing);
}

std::vector<Block> within_window(const std::vector<Block>& blocks, std::optional<int64_t> window,
                                 const Positions& queries, const Positions& keys) {
  if (!window) return blocks;
  std::vector<Block> parts;
  for (const Block& block : blocks) {
    if (block.q_length == 0 || block.k_length == 0) continue;
    const Positions of_queries = runs_in(queries, block.q_begin, block.q_begin + block.q_length);
    const Positions of_keys = runs_in(keys, block.k_begin, block.k_begin + block.k_length);
    int64_t last = last_position(of_queries[0]);
    for (const PositionRun& run : of_queries) last = std::max(last, last_position(run));
    if (last - of_keys[0].position < *window) {
      parts.push_back(block);
      continue;
    }
    for (const PositionRun& query_run : of_queries) {
      // Skips keys that lie outside the first query's window. add_part() leaves out keys after the
      // last query.
      const auto first =
          std::partition_point(of_keys.begin(), of_keys.end(), [&](const PositionRun& run) {
            return query_run.position - last_position(run) >= *window;
          });
      for (auto key_run = first; key_run != of_keys.end(); ++key_run) {
        add_within(parts, block, *window, query_run, *key_run);
      }
    }
  }
  return parts;
}

std::vector<Block> causal_blocks(const Packing& packing, std::optional<int64_t> window) {
  std::vector<Block> blocks = causal_blocks(packing);
  if (window) {
    const Positions positions = window_positions(0, packing.num_tokens(), packing);
    blocks = within_window(blocks, window, positions, positions);
  }
  const Positions places{{0, packing.num_tokens(), 0}};
  add_two_way_blocks(blocks, packing, places, places);
  return blocks;
}

int64_t first_key_seen(int64_t begin, int64_t end, const Packing& packing,
                       std::optional<int64_t> window) {
  if (begin >= end) return begin;
  const int64_t document = document_of(packing, begin), first = packing.begin(document);
  if (!window) return first;
  const std::vector<TreeSegment>& tree = packing.tree(document);
  if (tree.empty()) return first + std::max<int64_t>(0, begin - first - *window + 1);
  int64_t seen = begin;
  for (const TreeSegment& segment : tree) {
    const int64_t place = std::max(begin - first, segment.begin);
    if (place >= segment.end || first + place >= end) continue;
    // The first query of a segment sees the segment's first key, on the path to the root.
    const int64_t position = std::max<int64_t>(0, place - segment.shift - *window + 1);
    const TreeSegment* on_path = &segment;
    while (position < on_path->begin - on_path->shift) on_path = &tree[on_path->parent];
    seen = std::min(seen, first + position + on_path->shift);
  }
  return seen;
}

}  // namespace longspan
