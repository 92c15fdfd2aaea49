#include <algorithm>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/masked_rectangles.h"

namespace longspan {

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
    // Queries before this one see a part of the keys, the last of them all but those past its own.
    const int64_t num_partly = std::clamp<int64_t>(b.k_length - b.offset, 0, b.q_length);
    if (num_partly > 0) {
      aligned.push_back({b.q_begin, num_partly, b.k_begin, num_partly + b.offset, true, b.offset});
    }
    if (num_partly < b.q_length) {
      aligned.push_back(
          {b.q_begin + num_partly, b.q_length - num_partly, b.k_begin, b.k_length, false});
    }
  }
  return aligned;
}

}  // namespace longspan
