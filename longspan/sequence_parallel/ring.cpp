// Ring attention (arXiv 2310.01889): rank r holds the r-th part of the row. Only the row is padded,
// but of two ranks the later one has more to do. Bytes: ring_attention.h.
#include <algorithm>

#include "longspan/sequence_parallel/padding.h"
#include "longspan/sequence_parallel/ring_attention.h"

namespace longspan {
namespace {

TokenOrder token_order(const Packing& packing, int64_t multiple, int rank, int num_ranks) {
  TokenOrder order;
  order.packing = pad_tail(packing, num_ranks * multiple);
  const int64_t share = order.packing.num_tokens() / num_ranks;
  for (int64_t token = rank * share; token < (rank + 1) * share; ++token) {
    order.index.push_back(token < packing.num_tokens() ? token : -1);
  }
  return order;
}

// A document lies on both ranks, on one, or on neither.
std::vector<Block> blocks_of(const Packing& padded, int rank, int owner, int num_ranks) {
  std::vector<Block> blocks;
  if (owner > rank) return blocks;
  const int64_t share = padded.num_tokens() / num_ranks;
  for (int64_t document = 0; document < padded.num_documents(); ++document) {
    // The document's local tokens on a rank, from `begin` to `end`.
    struct Part {
      int64_t begin, end;
    };
    auto part_on = [&](int on) -> Part {
      return {std::max(padded.begin(document) - on * share, int64_t{0}),
              std::min(padded.end(document) - on * share, share)};
    };
    const Part q = part_on(rank), k = part_on(owner);
    if (q.begin >= q.end || k.begin >= k.end) continue;
    blocks.push_back({q.begin, q.end - q.begin, k.begin, k.end - k.begin, owner == rank});
  }
  return blocks;
}

}  // namespace

std::unique_ptr<SequenceParallel> make_ring(Group group, const BlockKernel& kernel) {
  return make_ring_attention(Rings({std::move(group)}), {"ring", token_order, blocks_of}, kernel);
}

}  // namespace longspan
