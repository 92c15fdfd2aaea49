// Async Ulysses (VeOmni): the exchanges overlap with the projections and, in waves of heads, with
// attention. t: this rank's tokens, N: query heads, M: kv heads, n: heads of a wave of this rank,
// H: elements of a head.
//
// The exchange of queries overlaps with the projection of keys, and the exchange of keys with the
// projection of values. The return of a wave's outputs overlaps with the attention of the next
// wave. The projection of returned outputs overlaps with the return of later outputs. Every
// exchange has two autograd operations, start and finish. Among ready operations, autograd runs the
// one that was recorded last, so the backward overlaps in the same way: the exchange of the
// gradients of a wave's heads overlaps with the computation of the gradients of the previous wave
// or of a projection's weights.
//
// Sends the bytes of Ulysses.
#include <ATen/ATen.h>

#include <algorithm>

#include "longspan/attention/attention.h"
#include "longspan/memory/transfer.h"
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/consecutive_shares.h"
#include "longspan/sequence_parallel/exchanged_attention.h"
#include "longspan/spec/self_attention_spec.h"

namespace longspan {
namespace {

// The query heads of one wave, by rank, and the same renumbered from 0.
struct WaveHeads {
  std::vector<int64_t> heads;
  BlocksByRank numbered;
};

WaveHeads wave_heads(const HeadSplit& split, int wave) {
  WaveHeads result;
  result.numbered = query_blocks(split, wave);
  for (auto& blocks : result.numbered) {
    for (HeadBlock& block : blocks) {
      const auto first = static_cast<int64_t>(result.heads.size());
      for (int64_t i = 0; i < block.num_heads; ++i) result.heads.push_back(block.head_begin + i);
      block.head_begin = first;
    }
  }
  return result;
}

class AsyncUlysses : public ConsecutiveShares {
 public:
  AsyncUlysses(Group group, const BlockKernel& kernel, int head_waves)
      : ConsecutiveShares(std::move(group), kernel), head_waves_(head_waves) {}

  bool overlaps_projections() const override { return true; }

  at::Tensor project_and_attend(const AttentionProjections& projections, const AttentionSpec& spec,
                                const Packing& packing, AttentionCheckpoint checkpoint) override {
    const at::Tensor q_tNH = projections.query();
    const int64_t t = q_tNH.size(0), N = q_tNH.size(1);
    // The kv heads of a wave depend on their number, which is known only after the key projection;
    // queries start at once.
    const int waves = num_waves(N);
    const HeadSplit of_queries = split_evenly(group_.size(), N, N, t * group_.size(), waves);
    std::vector<StartedExchange> q = start_waves(q_tNH, waves, [&](int wave) {
      BlocksByRank by_rank;  // one block per rank and wave; pieces are cut after arrival
      for (const RankShare& share : of_queries) {
        by_rank.push_back({share.waves[wave].pieces.at(0).query});
      }
      return by_rank;
    });
    const at::Tensor k_tMH = projections.key();
    const HeadSplit split = split_evenly(group_.size(), N, k_tMH.size(1), t * group_.size(), waves);
    const auto fetched = [&](int wave) { return fetched_blocks(split, wave); };
    std::vector<StartedExchange> k = start_waves(k_tMH, waves, fetched);
    std::vector<StartedExchange> v = start_waves(projections.value(), waves, fetched);

    const RankShare& share = split[group_.rank()];
    const AttendPiece attend = piece_attention(kernel_, spec, packing);
    ExchangedHeads heads;
    heads.sinks_N = projections.sinks_N;
    heads.k_items.resize(share.kv_items.size());
    heads.v_items.resize(share.kv_items.size());
    std::vector<StartedExchange> out;
    for (int wave = 0; wave < waves; ++wave) {
      const HeadWave& now = share.waves[wave];
      heads.queries = pieces_of(finish_tokens_to_heads(q[wave]).at(0), now);
      std::vector<at::Tensor> also;
      receive(k[wave], now, heads.k_items, also);
      receive(v[wave], now, heads.v_items, also);
      std::vector<at::Tensor> outs = attend_pieces(share, now, heads, attend, checkpoint);
      out.push_back(start_heads_to_tokens(outs, wave_heads(split, wave).numbered, group_, t,
                                          checkpoint.output_is_known(), also));
    }
    at::Tensor y_tD = projections.begin_output();
    for (int wave = 0; wave < waves; ++wave) {
      const at::Tensor out_tnH = finish_heads_to_tokens(out[wave]);
      y_tD = projections.add_output(y_tD, out_tnH, wave_heads(split, wave).heads);
    }
    return y_tD;
  }

  /// Without projections, the waves' exchanges overlap with attention alone.
  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    AttentionProjections given;
    given.sinks_N = inputs.sinks_N;
    given.query = [&] { return inputs.q_TNH; };
    given.key = [&] { return inputs.k_SMH; };
    given.value = [&] { return inputs.v_SMH; };
    given.begin_output = [] { return at::Tensor(); };
    std::vector<at::Tensor> outs;
    std::vector<int64_t> order;
    given.add_output = [&](const at::Tensor& y, const at::Tensor& out_tnH,
                           const std::vector<int64_t>& heads) {
      outs.push_back(out_tnH);
      order.insert(order.end(), heads.begin(), heads.end());
      return y;
    };
    project_and_attend(given, spec, packing, checkpoint);
    std::vector<int64_t> place(order.size());
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int64_t>(i);
    const at::Tensor index = sent_to(at::tensor(place, at::kLong), inputs.q_TNH.device());
    return at::cat(outs, 1).index_select(1, index);
  }

 private:
  int num_waves(int64_t num_heads) const {
    const int64_t of_rank = num_heads / group_.size();
    return static_cast<int>(std::min(of_rank, head_waves_));
  }

  template <typename BlocksOf>
  std::vector<StartedExchange> start_waves(const at::Tensor& x, int waves,
                                           const BlocksOf& blocks_of) {
    std::vector<StartedExchange> exchanges;
    for (int wave = 0; wave < waves; ++wave) {
      const BlocksByRank by_rank = blocks_of(wave);
      const bool any = std::any_of(by_rank.begin(), by_rank.end(),
                                   [](const auto& blocks) { return !blocks.empty(); });
      exchanges.push_back(any ? start_tokens_to_heads(x, by_rank, group_) : StartedExchange{});
    }
    return exchanges;
  }

  static void receive(const StartedExchange& exchange, const HeadWave& wave,
                      std::vector<at::Tensor>& items, std::vector<at::Tensor>& also) {
    if (!exchange.token.defined()) return;
    const std::vector<at::Tensor> arrived = finish_tokens_to_heads(exchange);
    if (wave.fetched.empty()) also.push_back(arrived.at(0));
    for (size_t i = 0; i < wave.fetched.size(); ++i) items[wave.fetched[i]] = arrived[i];
  }

  static std::vector<at::Tensor> pieces_of(const at::Tensor& q_TnH, const HeadWave& wave) {
    if (wave.pieces.size() == 1) return {q_TnH};
    std::vector<at::Tensor> pieces;
    int64_t head = 0;
    for (const AttentionPiece& piece : wave.pieces) {
      pieces.push_back(q_TnH.narrow(1, head, piece.query.num_heads));
      head += piece.query.num_heads;
    }
    return pieces;
  }

  int64_t head_waves_;
};

/// Seconds of the projections q, k, v and o, for a model as wide as its heads together.
double projection_seconds(const PassCost& cost) {
  const double t = static_cast<double>(cost.padded.num_tokens() / cost.plan.sequence_size);
  const AttentionSpec& spec = cost.shape.spec;
  SelfAttentionSpec mixer;
  mixer.attention = spec;
  const FlopCost flops = cost_of(mixer, spec.num_heads * spec.key_dim).projection_flops;
  return static_cast<double>(cost.backward ? flops.backward : flops.forward) * t /
         cost.cluster.forward_flops;
}

double exchanged_under_projections(const PassCost& cost, double bytes, double context_seconds) {
  return context_seconds +
         PassCost::exposed(cost.to_all(bytes, cost.plan.ulysses_size), projection_seconds(cost));
}

/// The exchanged tensors of the waves are saved.
AttentionVolumeParts volume(const ParallelPlan& plan, const AttentionShape& shape,
                            const Packing& padded, bool checkpointing, bool output_is_known) {
  return volume_of_degrees_in(/*in_waves=*/false, plan, shape, padded, checkpointing,
                              output_is_known);
}

AttentionMemory memory(const ParallelPlan& plan, const AttentionShape& shape,
                       const Packing& padded) {
  ParallelPlan at_once = plan;
  at_once.head_waves = 1;
  return memory_of_degrees(at_once, shape, padded);
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return std::make_unique<AsyncUlysses>(mesh.sequence, kernel, plan.head_waves);
}

}  // namespace

extern const Method kAsyncUlysses{
    .name = "async-ulysses",
    .keys = kOnlyHeadWaves,
    // With a single wave, no exchange overlaps with attention.
    .head_waves = {.own = 2, .cuts_heads = false, .most = whole_heads_of_rank},
    .refusal = fits_whole_heads,
    .ulysses_degrees = all_exchange_heads,
    .auto_degrees = not_by_auto,
    .complete = nothing_more,
    .padded_row = padded_at_tail,
    .token_order = consecutive_shares,
    .geometry = geometry_of_whole_heads,
    .context_seconds = keys_at_hand,
    .exchange_seconds = exchanged_under_projections,
    .volume = volume,
    .memory = memory,
    .make = make,
};

}  // namespace longspan
