// Ring attention (arXiv 2310.01889): rank r holds the r-th part of the row. Only the row is padded,
// but of two ranks the later one has more to do. Bytes: ring_attention.h.
#include <algorithm>

#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/ring_attention.h"
#include "longspan/sequence_parallel/share_of.h"

namespace longspan {
namespace {

// Local tokens of one rank.
struct Part {
  int64_t begin, end;
  int64_t length() const { return end - begin; }
};

// A document lies on both ranks, on one, or on neither.
std::vector<Block> blocks_of(const Packing& padded, int rank, int owner, int num_ranks) {
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

/// All wait for the rank that sees most in a step: with one document that is nearly twice the
/// average.
RankWork busiest_rank(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int64_t tile) {
  const int64_t R = plan.ring_size, t = padded.num_tokens() / R;
  std::vector<double> steps(R, 0.0);
  for (int64_t step = 0; step < R; ++step) {
    for (int64_t rank = step; rank < R; ++rank) {
      const int64_t q_begin = rank * t, k_begin = (rank - step) * t;
      double pairs = 0;
      for (int64_t d = 0; d < padded.num_documents(); ++d) {
        const int64_t queries =
            std::min(padded.end(d), q_begin + t) - std::max(padded.begin(d), q_begin);
        const int64_t keys =
            std::min(padded.end(d), k_begin + t) - std::max(padded.begin(d), k_begin);
        if (queries <= 0 || keys <= 0) continue;
        pairs += step == 0 ? triangle(queries, tile) : rectangle(queries, keys, tile);
      }
      steps[step] = std::max(steps[step], pairs);
    }
  }
  return {even_heads(plan, shape.spec.num_heads), std::move(steps)};
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& /*plan*/, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return make_ring_attention(Rings({mesh.ring}),
                             {"ring", consecutive_order, blocks_of, tokens_before}, kernel);
}

}  // namespace

extern const Method kRing{
    .name = "ring",
    .has_degrees = false,
    .has_windows = false,
    .head_waves = std::nullopt,
    .refusal = fits_any_heads,
    .ulysses_degrees = none_exchange_heads,
    .auto_degrees = not_by_auto,
    .complete = nothing_more,
    .padded_row = padded_at_tail,
    .busiest_rank = busiest_rank,
    .context_seconds = keys_round_rings,
    .exchange_seconds = nothing_exchanged,
    .volume = volume_of_degrees,
    .make = make,
};

}  // namespace longspan
