#include "longspan/attention/masked_rectangles.h"

#include <algorithm>

namespace longspan {

std::vector<MaskedRectangle> masked_rectangles_of(const Packing& packing,
                                                  const TokensBefore& queries_before,
                                                  const TokensBefore& keys_before) {
  std::vector<MaskedRectangle> masked;
  if (!packing.has_forks()) return masked;
  for (int64_t document = 0; document < packing.num_documents(); ++document) {
    const std::optional<Fork> fork = packing.fork(document);
    if (!fork) continue;
    const int64_t begin = packing.begin(document), second = begin + fork->second;
    const MaskedRectangle rectangle{queries_before(second), queries_before(packing.end(document)),
                                    keys_before(begin + fork->first), keys_before(second)};
    if (rectangle.q_begin < rectangle.q_end && rectangle.k_begin < rectangle.k_end)
      masked.push_back(rectangle);
  }
  return masked;
}

std::vector<Block> without_masked_pairs(const std::vector<Block>& blocks,
                                        const std::vector<MaskedRectangle>& masked) {
  if (masked.empty()) return blocks;
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

}  // namespace longspan
