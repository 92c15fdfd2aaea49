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
    // Cuts runs where documents and second branches begin.
    for (int64_t i = 0; i < run.length;) {
      const int64_t place = run.position + i * run.step;
      const int64_t document = document_of(packing, place);
      const std::optional<Fork> fork = packing.fork(document);
      int64_t end = packing.end(document), shift = 0;
      if (fork && place >= packing.begin(document) + fork->second) {
        shift = fork->second - fork->first;
      } else if (fork) {
        end = packing.begin(document) + fork->second;
      }
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
  // The first key that a query at `position` of the document sees, for keys of the prompt, whose
  // positions are their places.
  const auto seen_at = [&](int64_t position) {
    return first + std::max<int64_t>(0, position - *window + 1);
  };
  const int64_t place = begin - first;
  const std::optional<Fork> fork = packing.fork(document);
  if (!fork) return seen_at(place);
  if (place >= fork->second) {
    const int64_t position = place - (fork->second - fork->first);
    const int64_t seen = seen_at(position);
    // Where the window lies inside the second branch, places are behind positions by the length of
    // the first branch.
    return seen - first >= fork->first ? seen + (fork->second - fork->first) : seen;
  }
  const bool second_too = end > first + fork->second;
  return second_too ? std::min(seen_at(place), seen_at(fork->first)) : seen_at(place);
}

}  // namespace longspan
