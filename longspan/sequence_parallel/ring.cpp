// Ring attention (arXiv 2310.01889): rank r holds the r-th part of the row. Only the row is padded,
// not each document. Later ranks have more work, and in each step all ranks wait for the rank with
// the most visible pairs: with one document, steps take nearly twice the average work. Bytes:
// ring_attention.h.
#include <algorithm>

#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/rows/share_of.h"
#include "longspan/sequence_parallel/ring_attention.h"

namespace longspan {
namespace {

// Local tokens of one rank.
struct Part {
  int64_t begin, end;
  int64_t length() const { return end - begin; }
};

// A document may lie on both ranks, on one, or on neither.
std::vector<Block> blocks_in_order(const Packing& padded, int rank, int owner, int num_ranks) {
  std::vector<Block> blocks;
  if (owner > rank) return blocks;
  const int64_t share = padded.num_tokens() / num_ranks;
  for (int64_t document = 0; document < padded.num_documents(); ++document) {
    auto part_on = [&](int on) -> Part {
      return {std::max(padded.begin(document) - on * share, int64_t{0}),
              std::min(padded.end(document) - on * share, share)};
    };
    const Part q = part_on(rank), k = part_on(owner);
    if (q.length() <= 0 || k.length() <= 0) continue;
    blocks.push_back({q.begin, q.length(), k.begin, k.length(), owner == rank});
  }
  return blocks;
}

int64_t tokens_before(const Packing& padded, int64_t token, int rank, int num_ranks) {
  const int64_t share = padded.num_tokens() / num_ranks;
  return std::clamp<int64_t>(token - rank * share, 0, share);
}

Positions places(const Packing& padded, int rank, int num_ranks) {
  const int64_t share = padded.num_tokens() / num_ranks;
  return {{0, share, rank * share}};
}

constexpr RingLayout kLayout{"ring", consecutive_order, blocks_in_order, tokens_before, places};

}  // namespace

extern const Method kRing{
    .name = "ring",
    .keys = {},
    .head_waves = kOneWave,
    .refusal = fits_any_heads,
    .ulysses_degrees = none_exchange_heads,
    .auto_degrees = not_by_auto,
    .complete = nothing_more,
    .padded_row = padded_at_tail,
    .token_order = consecutive_shares,
    .geometry = geometry_of_ring<kLayout>,
    .context_seconds = keys_round_rings,
    .exchange_seconds = nothing_exchanged,
    .volume = volume_of_degrees,
    .memory = memory_of_degrees,
    .make = make_ring<kLayout>,
};

}  // namespace longspan
