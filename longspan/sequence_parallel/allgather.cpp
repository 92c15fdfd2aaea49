// Context parallelism by gathering: each rank holds consecutive tokens, and fetches the keys and
// values that its queries see from other ranks, mostly earlier ones. In the backward, the gradients
// of fetched keys and values return to the keys' owners, which sum the gradients. t: this rank's
// tokens, N: query heads, M: kv heads, H: elements of a head, P: ranks.
//
// All ranks hold the same number of tokens. With one document, the last rank has nearly twice the
// average work. With many short documents, all ranks have about the same work.
//
// Sent by all ranks, in the forward and in the backward: the keys and values in keys_of_rank() that
// the rank does not hold. In latent attention with a single wave, J latent elements per token are
// sent instead, and each rank expands the latents to keys and values. Queries and outputs are not
// sent.
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "longspan/attention/latent_keys.h"
#include "longspan/attention/leaf_attention.h"
#include "longspan/attention/sliding_window.h"
#include "longspan/attention/two_way_blocks.h"
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/consecutive_shares.h"
#include "longspan/sequence_parallel/exchanged_attention.h"
#include "longspan/sequence_parallel/head_exchange.h"

namespace longspan {
namespace {

// Tokens of the padded row.
struct TokenRange {
  int64_t begin, end;
};

TokenRange tokens_of_rank(const Packing& padded, int rank, int num_ranks) {
  const int64_t t = padded.num_tokens() / num_ranks;
  return {rank * t, (rank + 1) * t};
}

// Returns the keys that a rank's queries see: from the first key that its first query sees (the
// begin of its document or of the sliding window) to the rank's last token, or to the end of a
// two-way span that begins there or before.
TokenRange keys_of_rank(const Packing& padded, int rank, int num_ranks,
                        std::optional<int64_t> window) {
  const TokenRange queries = tokens_of_rank(padded, rank, num_ranks);
  return {first_key_seen(queries.begin, queries.end, padded, window),
          end_of_keys_seen(queries.begin, queries.end, padded)};
}

// All query heads of a rank's own tokens, with all kv heads of the keys that it needs.
HeadSplit split_by_tokens(int num_ranks, int64_t num_heads, int64_t num_kv_heads,
                          const Packing& padded, int head_waves, std::optional<int64_t> window) {
  const RankShare all_heads =
      split_evenly(/*num_ranks=*/1, num_heads, num_kv_heads, padded.num_tokens(), head_waves)[0];
  HeadSplit split(num_ranks, all_heads);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto only = [](HeadBlock& block, const TokenRange& tokens) {
      block.token_begin = tokens.begin;
      block.num_tokens = tokens.end - tokens.begin;
    };
    for (HeadBlock& item : split[rank].kv_items)
      only(item, keys_of_rank(padded, rank, num_ranks, window));
    for (HeadWave& wave : split[rank].waves) {
      for (AttentionPiece& piece : wave.pieces) {
        only(piece.query, tokens_of_rank(padded, rank, num_ranks));
      }
    }
  }
  return split;
}

/// Not in waves: each wave would expand its heads from latents that all waves need.
bool gathers_latents(const AttentionSpec& spec, int head_waves) {
  return spec.latent_dim && head_waves == 1;
}

class AllGather : public ConsecutiveShares {
 public:
  AllGather(Group group, const BlockKernel& kernel, int head_waves)
      : ConsecutiveShares(std::move(group), kernel), head_waves_(head_waves) {}

  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    const HeadSplit split =
        split_by_tokens(group_.size(), inputs.q_TNH.size(1), inputs.k_SMH.size(1), packing,
                        head_waves_, spec.window);
    return attend_exchanged(inputs, split, group_, piece_attention(kernel_, spec, packing),
                            checkpoint);
  }

  at::Tensor attend_latent(const at::Tensor& q_tNH, const at::Tensor& x_tJ,
                           const std::shared_ptr<const LatentKeys>& keys, const AttentionSpec& spec,
                           const Packing& packing, AttentionCheckpoint checkpoint) override {
    if (!gathers_latents(spec, head_waves_)) {
      return ConsecutiveShares::attend_latent(q_tNH, x_tJ, keys, spec, packing, checkpoint);
    }
    const int64_t t = q_tNH.size(0);
    TORCH_CHECK(t * group_.size() == packing.num_tokens(), "allgather: ", t, " tokens on each of ",
                group_.size(), " ranks, but the packing describes ", packing.num_tokens());
    BlocksByRank needed;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const auto [begin, end] = keys_of_rank(packing, rank, group_.size(), spec.window);
      needed.push_back({HeadBlock{0, 1, begin, end - begin}});
    }
    const std::vector<at::Tensor> gathered =
        finish_tokens_to_heads(start_tokens_to_heads(x_tJ.unsqueeze(1), needed, group_));
    const LatentKeys::Heads heads = expanded(gathered.at(0).squeeze(1), keys);
    const HeadBlock queries{0, q_tNH.size(1), group_.rank() * t, t};
    return leaf_attention(kernel_, {q_tNH, heads.k_SMH, heads.v_SMH}, spec,
                          blocks_of_piece(queries, needed[group_.rank()][0], packing, spec.window),
                          checkpoint);
  }

 private:
  int head_waves_;
};

int64_t heads_of_layer(int64_t num_heads, const ParallelPlan& /*plan*/) { return num_heads; }

RankGeometry geometry(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int rank) {
  const int P = plan.ring_size;
  const HeadSplit split = split_by_tokens(P, shape.spec.num_heads, shape.spec.num_kv_heads, padded,
                                          plan.head_waves, shape.spec.window);
  RankGeometry geometry = geometry_of_share(split[rank], P, padded, shape);
  for (AttentionStep& step : geometry.steps) {
    std::swap(step.keys, step.context_keys);
    if (!gathers_latents(shape.spec, plan.head_waves)) continue;
    for (const HeadTokens& keys : step.context_keys) step.context_latents.push_back(keys.tokens);
    step.context_keys.clear();
  }
  return geometry;
}

AttentionVolumeParts volume(const ParallelPlan& plan, const AttentionShape& shape,
                            const Packing& padded, bool checkpointing, bool output_is_known) {
  const HeadRows arriving = rows_that_arrive(plan, shape, padded);
  if (gathers_latents(shape.spec, plan.head_waves)) {
    const int64_t once = arriving.context_latents * *shape.spec.latent_dim * shape.element_bytes;
    return {{}, {once, checkpointing ? 2 * once : once}};
  }
  HeadRows gathered;
  gathered.kv = arriving.context_kv;
  return {{},
          exchange_volume(gathered, shape, plan.head_waves > 1, checkpointing, output_is_known)};
}

/// All ranks wait for the one that needs most keys. No work hides the keys of its first wave.
double gathering_seconds(const PassCost& cost, double bytes, const std::vector<double>& work) {
  const int P = cost.plan.ring_size;
  double most = 0, sum = 0;
  for (int rank = 0; rank < P; ++rank) {
    const TokenRange own = tokens_of_rank(cost.padded, rank, P),
                     keys = keys_of_rank(cost.padded, rank, P, cost.shape.spec.window);
    const auto foreign = static_cast<double>(own.begin - keys.begin + keys.end - own.end);
    most = std::max(most, foreign);
    sum += foreign;
  }
  const double of_busiest = sum > 0 ? bytes * most * P / sum : 0;
  const PassCost::Sending gather = cost.to_all(of_busiest, P);
  const double waves = cost.plan.head_waves;
  return work[0] + gather.seconds / waves +
         PassCost::exposed(gather, work[0]) * (waves - 1) / waves;
}

AttentionMemory memory(const ParallelPlan& plan, const AttentionShape& shape,
                       const Packing& padded) {
  const int P = plan.ring_size;
  const int64_t t = padded.num_tokens() / P;
  const auto kv_heads = static_cast<double>(shape.spec.num_kv_heads);
  const auto keys_of = [&](int rank) { return keys_of_rank(padded, rank, P, shape.spec.window); };
  if (gathers_latents(shape.spec, plan.head_waves)) {
    const RowBytes bytes(shape);
    return fullest_rank(plan, [&](int rank) {
      const auto own = static_cast<double>(t),
                 all = static_cast<double>(keys_of(rank).end - keys_of(rank).begin);
      const double more = (all - own) * kv_heads * bytes.kv, latents = all * bytes.latents;
      AttentionMemory memory;
      memory.inputs = more + latents;
      // During the expansion, keys and values exist twice, and the output does not exist yet.
      memory.forward = std::max(more + latents,
                                more + latents + all * kv_heads * bytes.kv -
                                    own * static_cast<double>(shape.spec.num_heads) * bytes.output);
      memory.backward = latents + (1 + bytes.widening) * more;
      return memory;
    });
  }
  return fullest_rank(plan, [&](int rank) {
    RankGeometry own = geometry(plan, shape, padded, rank);
    for (AttentionStep& step : own.steps) std::swap(step.keys, step.context_keys);
    HeadsAtHand heads = heads_at_hand(own, rank, t);
    heads.cuts = plan.head_waves > 1;
    heads.returning_kv = 0;
    for (int other = 0; other < P; ++other) {
      if (other == rank) continue;
      const TokenRange keys = keys_of(other);
      const int64_t seen = std::min((rank + 1) * t, keys.end) - std::max(rank * t, keys.begin);
      heads.returning_kv += kv_heads * static_cast<double>(std::max<int64_t>(0, seen));
    }
    return memory_of_exchange(heads, plan.head_waves, P, shape, t);
  });
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return std::make_unique<AllGather>(mesh.sequence, kernel, plan.head_waves);
}

}  // namespace

extern const Method kAllGather{
    .name = "allgather",
    .keys = kOnlyHeadWaves,
    .head_waves = {.own = 1, .cuts_heads = false, .most = heads_of_layer},
    .refusal = fits_any_heads,
    .ulysses_degrees = none_exchange_heads,
    .auto_degrees = not_by_auto,
    .complete = nothing_more,
    .padded_row = padded_at_tail,
    .token_order = consecutive_shares,
    .geometry = geometry,
    .context_seconds = gathering_seconds,
    .exchange_seconds = nothing_exchanged,
    .volume = volume,
    .memory = memory,
    .make = make,
};

}  // namespace longspan
