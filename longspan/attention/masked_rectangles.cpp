#include "longspan/attention/masked_rectangles.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace longspan {
namespace {

constexpr size_t kSegmentsOfPair = 3;

/// Removes the pairs of one level.
std::vector<Block> without_level(const std::vector<Block>& blocks,
                                 const std::vector<MaskedRectangle>& masked) {
  std::vector<Block> parts;
  parts.reserve(blocks.size() + 2 * masked.size());
  for (const Block& block : blocks) {
    const int64_t q_end = block.q_begin + block.q_length;
    auto rectangle = std::upper_bound(
        masked.begin(), masked.end(), block.q_begin,
        [](int64_t query, const MaskedRectangle& other) { return query < other.q_end; });
    int64_t query = block.q_begin;  // the first query that is in no part yet
    for (; rectangle != masked.end() && rectangle->q_begin < q_end; ++rectangle) {
      const int64_t k_first =
          std::clamp<int64_t>(rectangle->k_begin - block.k_begin, 0, block.k_length);
      const int64_t k_last =
          std::clamp<int64_t>(rectangle->k_end - block.k_begin, 0, block.k_length);
      if (k_first == k_last) continue;
      const int64_t begin = std::max(query, rectangle->q_begin),
                    behind = std::min(q_end, rectangle->q_end);
      add_part(parts, block, query, begin, 0, block.k_length);
      add_part(parts, block, begin, behind, 0, k_first);
      add_part(parts, block, begin, behind, k_last, block.k_length);
      query = behind;
    }
    if (query == block.q_begin) {
      parts.push_back(block);  // unchanged
    } else {
      add_part(parts, block, query, q_end, 0, block.k_length);
    }
  }
  return parts;
}

/// Joins rectangles of consecutive queries that see the same keys.
std::vector<Block> joined(const std::vector<Block>& blocks) {
  std::vector<Block> result;
  result.reserve(blocks.size());
  std::map<std::tuple<int64_t, int64_t, int64_t>, size_t> ends;  // of keys and end of queries
  for (const Block& block : blocks) {
    if (block.causal || block.lower) {
      result.push_back(block);
      continue;
    }
    size_t place = result.size();
    const auto before = ends.find({block.k_begin, block.k_length, block.q_begin});
    if (before == ends.end()) {
      result.push_back(block);
    } else {
      place = before->second;
      result[place].q_length += block.q_length;
      ends.erase(before);
    }
    ends[{block.k_begin, block.k_length, block.q_begin + block.q_length}] = place;
  }
  return result;
}

}  // namespace

MaskedRectangles masked_rectangles_of(const Packing& packing, const TokensBefore& queries_before,
                                      const TokensBefore& keys_before) {
  MaskedRectangles masked;
  if (!packing.has_forks()) return masked;
  for (int64_t document = 0; document < packing.num_documents(); ++document) {
    const std::vector<TreeSegment>& tree = packing.tree(document);
    const int64_t begin = packing.begin(document);
    masked.joins = masked.joins || tree.size() > kSegmentsOfPair;
    for (const TreeSegment& segment : tree) {
      if (segment.parent == kNoParent) continue;
      const int64_t first = tree[segment.parent].end;  // begin of the parent's first branch
      const MaskedRectangle rectangle{
          queries_before(begin + segment.begin), queries_before(begin + segment.subtree_end),
          keys_before(begin + first), keys_before(begin + segment.begin)};
      if (rectangle.q_begin >= rectangle.q_end || rectangle.k_begin >= rectangle.k_end) continue;
      const auto depth = static_cast<size_t>(segment.depth);
      if (masked.levels.size() < depth) masked.levels.resize(depth);
      masked.levels[depth - 1].push_back(rectangle);
    }
  }
  return masked;
}

std::vector<Block> without_masked_pairs(const std::vector<Block>& blocks,
                                        const MaskedRectangles& masked) {
  std::vector<Block> parts = blocks;
  for (const std::vector<MaskedRectangle>& level : masked.levels) {
    if (!level.empty()) parts = without_level(parts, level);
  }
  return masked.joins ? joined(parts) : parts;
}

}  // namespace longspan
