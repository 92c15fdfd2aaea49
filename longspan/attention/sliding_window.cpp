#include "longspan/attention/sliding_window.h"

#include <algorithm>

namespace longspan {
namespace {

// The first of the tokens [begin, end) at or behind `place`; `end` where there is none.
int64_t first_at(int64_t place, int64_t begin, int64_t end, const PlaceOf& place_of) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (place_of(middle) < place) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// How many of the block's keys its queries before `q_end` see.
int64_t keys_seen(const Block& block, int64_t q_end) {
  if (!block.causal) return block.k_length;
  return std::min(block.k_length, q_end - block.q_begin + block.offset);
}

}  // namespace

std::vector<Block> within_window(const std::vector<Block>& blocks, int64_t window,
                                 const PlaceOf& query_place, const PlaceOf& key_place) {
  std::vector<Block> parts;
  for (const Block& block : blocks) {
    const int64_t q_end = block.q_begin + block.q_length;
    if (block.q_length == 0 || block.k_length == 0) continue;
    if (query_place(q_end - 1) - key_place(block.k_begin) < window) {
      parts.push_back(block);
      continue;
    }
    for (int64_t begin = block.q_begin; begin < q_end;) {
      const int64_t strip_end = first_at(query_place(begin) + window, begin, q_end, query_place);
      const int64_t seen = keys_seen(block, strip_end);
      const int64_t first = first_at(query_place(begin) - window + 1, block.k_begin,
                                     block.k_begin + seen, key_place) -
                            block.k_begin;
      if (first < seen) {
        const int64_t last_place = key_place(block.k_begin + seen - 1);
        const int64_t end = first_at(last_place + window, begin, strip_end, query_place);
        add_part(parts, block, begin, end, first, keys_seen(block, end));
      }
      begin = strip_end;
    }
  }
  return parts;
}

}  // namespace longspan
