// DeepSpeed-Ulysses (arXiv 2309.14509) around any inner method. t: this rank's tokens, T = P t:
// tokens of the group, N: query heads, M: kv heads, H: elements of a head, J: latent elements of a
// token.
//
// Sent by a rank, in the forward and in the backward: (P-1)/P of its tokens' query and output
// heads, and each kv head once to every other rank that has a query head of this kv head. In latent
// attention, J latent elements per token are sent to every other rank instead of keys and values if
// the latents have fewer bytes (passes_latents() in plan/attention_volume.h). Each rank then
// expands its own heads for the whole row. The work is the same as the expansion of all heads for
// the rank's own tokens.
#include <ATen/core/Tensor.h>

#include "longspan/attention/latent_keys.h"
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/rows/share_of.h"
#include "longspan/sequence_parallel/exchanged_attention.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

namespace {

class Ulysses : public SequenceParallel {
 public:
  Ulysses(Group group, std::unique_ptr<SequenceParallel> inner, int head_waves)
      : group_(std::move(group)), inner_(std::move(inner)), head_waves_(head_waves) {}

  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    const at::Tensor &q_tNH = inputs.q_TNH, &k_tMH = inputs.k_SMH;
    const HeadSplit split = split_evenly(group_.size(), q_tNH.size(1), k_tMH.size(1),
                                         q_tNH.size(0) * group_.size(), head_waves_);
    const auto attend = [inner = inner_.get(), spec, packing](
                            const AttentionPiece&, const HeadBlock&, const AttentionInputs& heads,
                            AttentionCheckpoint checkpoint) {
      return inner->attend(heads, spec, packing, checkpoint);
    };
    return attend_exchanged(inputs, split, group_, attend, checkpoint);
  }

  at::Tensor attend_latent(const at::Tensor& q_tNH, const at::Tensor& x_tJ,
                           const std::shared_ptr<const LatentKeys>& keys, const AttentionSpec& spec,
                           const Packing& packing, AttentionCheckpoint checkpoint) override {
    const int U = group_.size();
    if (!passes_latents(spec, U, head_waves_)) {
      return SequenceParallel::attend_latent(q_tNH, x_tJ, keys, spec, packing, checkpoint);
    }
    const int64_t t = q_tNH.size(0), T = t * U;
    const HeadSplit split = split_evenly(U, q_tNH.size(1), spec.num_kv_heads, T, /*head_waves=*/1);
    const BlocksByRank queries = query_blocks(split, 0), all_tokens(U, {HeadBlock{0, 1, 0, T}});
    const auto q = start_tokens_to_heads(q_tNH, queries, group_);
    const auto x = start_tokens_to_heads(x_tJ.unsqueeze(1), all_tokens, group_);
    const RankShare& share = split[group_.rank()];
    std::vector<at::Tensor> outs;
    {
      const std::vector<at::Tensor> q_pieces = finish_tokens_to_heads(q);
      const at::Tensor x_TJ = finish_tokens_to_heads(x).at(0).squeeze(1);
      for (size_t i = 0; i < q_pieces.size(); ++i) {
        const AttentionPiece& piece = share.waves[0].pieces[i];
        const int64_t kv_begin = share.kv_items[piece.kv_item].head_begin + piece.kv_begin;
        outs.push_back(inner_->attend_latent(
            q_pieces[i], x_TJ, keys->of_heads(kv_begin, piece.num_kv), spec, packing, checkpoint));
      }
    }  // frees them; without a graph nothing needs them any more
    return finish_heads_to_tokens(
        start_heads_to_tokens(outs, queries, group_, t, checkpoint.output_is_known()));
  }

  int rank() const override { return inner_->rank() * group_.size() + group_.rank(); }

  TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const override {
    const int U = group_.size();
    return share_of(inner_->token_order_of(rank / U, packing, multiple * U), rank % U, U);
  }

 private:
  Group group_;
  std::unique_ptr<SequenceParallel> inner_;
  int head_waves_;
};

std::unique_ptr<SequenceParallel> make(const ParallelPlan& plan, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return ulysses_around(make_local(kernel), plan, mesh);
}

}  // namespace

std::unique_ptr<SequenceParallel> ulysses_around(std::unique_ptr<SequenceParallel> inner,
                                                 const ParallelPlan& plan, const Mesh& mesh) {
  if (plan.ulysses_size == 1) return inner;
  return std::make_unique<Ulysses>(mesh.ulysses, std::move(inner), plan.head_waves);
}

extern const Method kUlysses{
    .name = "ulysses",
    .keys = kOnlyHeadWaves,
    .head_waves = {.own = 1, .cuts_heads = false, .most = whole_heads_of_rank},
    .refusal = fits_whole_heads,
    .ulysses_degrees = all_exchange_heads,
    .auto_degrees = all_exchange_heads,
    .complete = nothing_more,
    .padded_row = padded_at_tail,
    .token_order = consecutive_shares,
    .geometry = geometry_with_latents,
    .context_seconds = keys_at_hand,
    .exchange_seconds = exchanged_in_waves,
    .volume = volume_of_degrees,
    .memory = memory_of_degrees,
    .make = make,
};

}  // namespace longspan
