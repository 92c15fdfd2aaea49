#include "longspan/attention/block.h"

#include <algorithm>

#include "longspan/attention/masked_rectangles.h"

namespace longspan {
namespace {

double in_tiles(int64_t queries, int64_t keys, int64_t tile) {
  const auto whole = [&](int64_t length) {
    return static_cast<double>((length + tile - 1) / tile * tile);
  };
  return whole(queries) * whole(keys);
}

double triangle_in_tiles(int64_t queries, int64_t tile) {
  const auto n = static_cast<double>((queries + tile - 1) / tile);
  return static_cast<double>(tile * tile) * n * (n + 1) / 2;
}

/// Counts the pairs of a block with a lower end, one row of tiles at a time.
double band_in_tiles(const Block& block, int64_t tile) {
  double pairs = 0;
  for (int64_t i = 0; i < block.q_length; i += tile) {
    const int64_t last = std::min(i + tile, block.q_length) - 1;
    const int64_t begin = keys_of(block, i).begin / tile * tile, end = keys_of(block, last).end;
    if (begin < end) pairs += in_tiles(last - i + 1, end - begin, tile);
  }
  return pairs;
}

}  // namespace

KeyRange keys_of(const Block& block, int64_t i) {
  const int64_t end =
      block.causal ? std::min(block.k_length, i + block.offset + 1) : block.k_length;
  return {block.lower ? std::max<int64_t>(0, i + *block.lower) : 0, end};
}

Block trimmed(const Block& block) {
  Block part = block;
  if (!part.lower) return part;
  if (part.causal && part.offset < *part.lower) {  // no query sees a key
    part.q_length = part.k_length = 0;
    return part;
  }
  // Query 0 has the lowest of all lower ends.
  if (const int64_t unseen = std::min(*part.lower, part.k_length); unseen > 0) {
    part.k_begin += unseen;
    part.k_length -= unseen;
    *part.lower -= unseen;
    if (part.causal) part.offset -= unseen;
  }
  part.q_length = std::clamp<int64_t>(part.k_length - *part.lower, 0, part.q_length);
  if (part.causal) part.k_length = std::min(part.k_length, part.q_length + part.offset);
  if (part.causal && part.offset + 1 >= part.k_length) {
    part.causal = false;
    part.offset = 0;
  }
  if (*part.lower + part.q_length - 1 <= 0) part.lower.reset();
  return part;
}

bool have_lower_ends(const std::vector<Block>& blocks) {
  return std::ranges::any_of(blocks, [](const Block& block) { return block.lower.has_value(); });
}

std::vector<Block> causal_blocks(const Packing& packing) {
  std::vector<Block> blocks;
  blocks.reserve(packing.num_documents());
  for (int64_t document = 0; document < packing.num_documents(); ++document) {
    blocks.push_back({packing.begin(document), packing.length(document), packing.begin(document),
                      packing.length(document), true});
  }
  const auto token = [](int64_t token) { return token; };
  return without_masked_pairs(blocks, masked_rectangles_of(packing, token, token));
}

std::vector<Block> aligned_at_end(const std::vector<Block>& blocks) {
  std::vector<Block> aligned;
  for (const Block& b : blocks) {
    if (!b.causal) {
      aligned.push_back(b);
      continue;
    }
    // The first num_partly queries do not see all keys. The last of them sees all keys of the new
    // block.
    const int64_t num_partly = std::clamp<int64_t>(b.k_length - b.offset, 0, b.q_length);
    if (num_partly > 0) {
      aligned.push_back(
          {b.q_begin, num_partly, b.k_begin, num_partly + b.offset, true, b.offset, b.lower});
    }
    if (num_partly < b.q_length) {
      aligned.push_back(
          {b.q_begin + num_partly, b.q_length - num_partly, b.k_begin, b.k_length, false});
      if (b.lower) aligned.back().lower = *b.lower + num_partly;
    }
  }
  return aligned;
}

void add_part(std::vector<Block>& parts, const Block& block, int64_t q_begin, int64_t q_end,
              int64_t k_first, int64_t k_last) {
  if (!block.causal) {
    if (q_begin < q_end && k_first < k_last) {
      parts.push_back({q_begin, q_end - q_begin, block.k_begin + k_first, k_last - k_first, false});
    }
    return;
  }
  int64_t offset = block.offset + (q_begin - block.q_begin) - k_first;
  if (offset < 0) {
    q_begin -= offset;
    offset = 0;
  }
  const int64_t q_length = q_end - q_begin;
  const int64_t k_length = std::min(k_last - k_first, q_length + offset);
  if (q_length <= 0 || k_length <= 0) return;
  const bool causal = offset + 1 < k_length;
  parts.push_back(
      {q_begin, q_length, block.k_begin + k_first, k_length, causal, causal ? offset : 0});
}

double pairs_of(const std::vector<Block>& blocks, int64_t tile) {
  double pairs = 0;
  for (const Block& block : blocks) {
    if (block.lower) {
      pairs += band_in_tiles(block, tile);
      continue;
    }
    if (!block.causal) {
      pairs += in_tiles(block.q_length, block.k_length, tile);
      continue;
    }
    // Query i sees min(i + offset + 1, k_length) keys: a rectangle and a triangle, then a rectangle
    // of the queries that see all keys.
    const int64_t growing = std::clamp<int64_t>(block.k_length - block.offset, 0, block.q_length);
    pairs += in_tiles(growing, block.offset, tile) + triangle_in_tiles(growing, tile) +
             in_tiles(block.q_length - growing, block.k_length, tile);
  }
  return pairs;
}

}  // namespace longspan
