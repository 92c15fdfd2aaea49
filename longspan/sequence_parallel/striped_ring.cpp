// Striped attention (arXiv 2311.09431): token i of the row is on rank i mod R, so that the visible
// pairs of every step form a triangle, and the work of any two ranks differs by at most a diagonal.
// Only the row is padded. Bytes: ring_attention.h. In a sliding window of R or more tokens, every
// rank's queries see keys of all other ranks, so a window saves work but no bytes.
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/rows/padding.h"
#include "longspan/sequence_parallel/ring_attention.h"

namespace longspan {
namespace {

TokenOrder token_order(const Packing& packing, int64_t multiple, int rank, int num_ranks) {
  TokenOrder order;
  order.packing = pad_tail(packing, num_ranks * multiple);
  for (int64_t token = rank; token < order.packing.num_tokens(); token += num_ranks) {
    order.index.push_back(token < packing.num_tokens() ? token : -1);
  }
  return order;
}

int64_t tokens_before(const Packing& /*padded*/, int64_t token, int rank, int num_ranks) {
  return (token - rank + num_ranks - 1) / num_ranks;
}

// Query i of rank r is token i R + r. The query sees keys j of rank o with j R + o <= i R + r: j up
// to i, or up to i - 1 if o > r. In a document, the first query that sees any key of rank o sees
// exactly one key, and each further query sees one key more: the block is a square with a causal
// mask.
std::vector<Block> blocks_in_stripes(const Packing& padded, int rank, int owner, int num_ranks) {
  std::vector<Block> blocks;
  const int64_t behind = owner > rank ? 1 : 0;
  for (int64_t document = 0; document < padded.num_documents(); ++document) {
    const int64_t k_begin = tokens_before(padded, padded.begin(document), owner, num_ranks);
    const int64_t q_begin = k_begin + behind;
    const int64_t length = tokens_before(padded, padded.end(document), rank, num_ranks) - q_begin;
    if (length > 0) blocks.push_back({q_begin, length, k_begin, length, true});
  }
  return blocks;
}

Positions places(const Packing& padded, int rank, int num_ranks) {
  return {{0, padded.num_tokens() / num_ranks, rank, num_ranks}};
}

constexpr RingLayout kLayout{"striped ring", token_order, blocks_in_stripes, tokens_before, places};

TokenOrder stripes(const ParallelPlan& plan, const Packing& row, int64_t multiple, int rank) {
  return token_order(row, multiple, rank, plan.ring_size);
}

}  // namespace

extern const Method kStripedRing{
    .name = "striped-ring",
    .keys = {},
    .head_waves = kOneWave,
    .refusal = fits_any_heads,
    .ulysses_degrees = none_exchange_heads,
    .auto_degrees = not_by_auto,
    .complete = nothing_more,
    .padded_row = padded_at_tail,
    .token_order = stripes,
    .geometry = geometry_of_ring<kLayout>,
    .context_seconds = keys_round_rings,
    .exchange_seconds = nothing_exchanged,
    .volume = volume_of_degrees,
    .memory = memory_of_degrees,
    .make = make_ring<kLayout>,
};

}  // namespace longspan
