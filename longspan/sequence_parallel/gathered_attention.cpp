// t: this rank's tokens, T = R t: tokens of the row, N: query heads, M: kv heads, m: kv heads of a
// wave, n: their query heads, H: elements of a head, J: latent elements of all heads.
#include "longspan/sequence_parallel/gathered_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "longspan/attention/latent_keys.h"
#include "longspan/attention/leaf_attention.h"
#include "longspan/attention/masked_rectangles.h"
#include "longspan/attention/sinks.h"
#include "longspan/attention/two_way_blocks.h"
#include "longspan/kernels/linear.h"
#include "longspan/memory/transfer.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/sequence_parallel/ring_attention.h"
#include "longspan/sequence_parallel/zigzag_order.h"

namespace longspan {

std::vector<GatheredHeads> gathered_waves(int64_t num_heads, int64_t num_kv_heads, int num_ranks) {
  const int64_t at_once = std::max<int64_t>(1, num_kv_heads / num_ranks);
  const int64_t group_size = num_heads / num_kv_heads;
  std::vector<GatheredHeads> waves;
  for (int64_t begin = 0; begin < num_kv_heads; begin += at_once) {
    const int64_t count = std::min(at_once, num_kv_heads - begin);
    waves.push_back({begin, count, begin * group_size, count * group_size});
  }
  return waves;
}

std::vector<Block> blocks_of_row(const Packing& padded, int rank, int num_ranks) {
  const int R = num_ranks;
  std::vector<Block> blocks;
  for (int64_t document = 0; document < padded.num_documents(); ++document) {
    const int64_t chunk = padded.length(document) / (2 * R);
    int64_t q_begin = padded.begin(document) / R;
    for (const int64_t c : {rank, 2 * R - 1 - rank}) {
      blocks.push_back({q_begin, chunk, padded.begin(document), (c + 1) * chunk, /*causal=*/true,
                        /*offset=*/c * chunk});
      q_begin += chunk;
    }
  }
  blocks = without_masked_pairs(
      blocks,
      masked_rectangles_of(
          padded, [&](int64_t token) { return zigzag_tokens_before(padded, token, rank, R); },
          [](int64_t token) { return token; }));
  if (!padded.two_way().empty()) {
    add_two_way_blocks(blocks, padded, zigzag_runs(padded, rank, R), {{0, padded.num_tokens(), 0}});
  }
  return blocks;
}

bool gathers_latents(const AttentionSpec& spec) {
  return passes_latents(spec, /*ulysses_size=*/1, /*head_waves=*/1);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GatherState : torch::CustomClassHolder {
  /// `latents`: null if keys and values are gathered.
  GatherState(Group group, const BlockKernel& kernel, const AttentionSpec& spec,
              const Packing& packing, at::Device device, std::shared_ptr<const LatentKeys> latents)
      : group(std::move(group)), kernel(kernel), spec(spec), latents(std::move(latents)) {
    const int R = this->group.size(), rank = this->group.rank();
    blocks = blocks_of_row(packing, rank, R);
    std::vector<int64_t> places, gathered(packing.num_tokens());
    places.reserve(packing.num_tokens());
    for (int other = 0; other < R; ++other) {
      const std::vector<int64_t> part = zigzag_places(packing, other, R);
      places.insert(places.end(), part.begin(), part.end());
    }
    for (size_t i = 0; i < places.size(); ++i) gathered[places[i]] = static_cast<int64_t>(i);
    row_places = sent_to(at::tensor(places, at::kLong), device);
    gathered_places = sent_to(at::tensor(gathered, at::kLong), device);
  }

  Group group;
  const BlockKernel& kernel;
  AttentionSpec spec;
  std::shared_ptr<const LatentKeys> latents;
  AttentionCheckpoint checkpoint;  // for the forward alone
  std::vector<Block> blocks;       // this rank's queries, keys of the whole row
  at::Tensor row_places;           // places in the row of the tokens of rank 0, of rank 1, ...
  at::Tensor gathered_places;      // the inverse

  // Calls visit(wave, k_TmH, v_TmH) for every wave.
  template <typename Visit>
  void gather_waves(const at::Tensor& q_tNH, const at::Tensor& k_tMH, const at::Tensor& v_tMH,
                    Visit visit) const {
    const std::vector<GatheredHeads> waves =
        gathered_waves(q_tNH.size(1), k_tMH.size(1), group.size());
    auto gather = [&](const at::Tensor& x_tMH, size_t wave) {
      return wave < waves.size() ? group.all_gather(waves[wave].keys(x_tMH)) : Pending({});
    };
    Pending k = gather(k_tMH, 0), v = gather(v_tMH, 0);
    for (size_t i = 0; i < waves.size(); ++i) {
      const at::Tensor k_TmH = k.wait().index_select(0, gathered_places);
      const at::Tensor v_TmH = v.wait().index_select(0, gathered_places);
      k = gather(k_tMH, i + 1);
      v = gather(v_tMH, i + 1);
      visit(waves[i], k_TmH, v_TmH);
    }
  }

  /// Calls visit(wave, its latents, k_TmH, v_TmH, x_TJ) for every wave.
  template <typename Visit>
  void expand_waves(const at::Tensor& q_tNH, const at::Tensor& x_tJ, Visit visit) const {
    const at::Tensor x_TJ = group.all_gather(x_tJ).wait().index_select(0, gathered_places);
    for (const GatheredHeads& wave :
         gathered_waves(q_tNH.size(1), spec.num_kv_heads, group.size())) {
      const auto keys = latents->of_heads(wave.kv_begin, wave.num_kv);
      const LatentKeys::Heads heads = keys->expand(x_TJ);
      visit(wave, *keys, heads.k_SMH, heads.v_SMH, x_TJ);
    }
  }

  /// `own`: keys and values, or latents.
  AttentionResult forward(const at::Tensor& q_tNH, const std::vector<at::Tensor>& own) const {
    std::vector<at::Tensor> out, lse;
    const auto attend = [&](const GatheredHeads& wave, const at::Tensor& k_TmH,
                            const at::Tensor& v_TmH) {
      AttentionResult part = kernel.forward(wave.queries(q_tNH), k_TmH, v_TmH, spec, blocks);
      out.push_back(part.out_TNH);
      lse.push_back(part.lse_NT);
    };
    if (latents) {
      expand_waves(q_tNH, own[0],
                   [&](const GatheredHeads& wave, const LatentKeys&, const at::Tensor& k_TmH,
                       const at::Tensor& v_TmH, const at::Tensor&) { attend(wave, k_TmH, v_TmH); });
    } else {
      gather_waves(q_tNH, own[0], own[1], attend);
    }
    if (out.size() == 1) return {out[0], lse[0]};
    return {at::cat(out, 1), at::cat(lse, 0)};
  }

  AttentionGradients backward(const AttentionGradientInputs& inputs) const {
    const auto empty_like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options()); };
    AttentionGradients gradients{empty_like(inputs.q_TNH), empty_like(inputs.k_SMH),
                                 empty_like(inputs.v_SMH)};
    // Gradients of the previous wave, on their way to the owners.
    std::optional<GatheredHeads> sent;
    Pending dk({}), dv({});
    auto receive = [&] {
      if (!sent) return;
      sent->keys(gradients.dk_SMH).copy_(dk.wait());
      sent->keys(gradients.dv_SMH).copy_(dv.wait());
    };
    gather_waves(inputs.q_TNH, inputs.k_SMH, inputs.v_SMH,
                 [&](const GatheredHeads& wave, const at::Tensor& k_TmH, const at::Tensor& v_TmH) {
                   const AttentionGradients part = kernel.backward(
                       {wave.queries(inputs.dout_TNH), wave.queries(inputs.q_TNH), k_TmH, v_TmH,
                        wave.queries(inputs.out_TNH), wave.lse(inputs.lse_NT)},
                       spec, blocks);
                   wave.queries(gradients.dq_TNH).copy_(part.dq_TNH);
                   receive();
                   dk = group.reduce_scatter(part.dk_SMH.index_select(0, row_places));
                   dv = group.reduce_scatter(part.dv_SMH.index_select(0, row_places));
                   sent = wave;
                 });
    receive();
    return gradients;
  }

  /// Returns d loss / d (q, x).
  std::pair<at::Tensor, at::Tensor> backward_of_latents(const at::Tensor& dout_tNH,
                                                        const at::Tensor& q_tNH,
                                                        const at::Tensor& x_tJ,
                                                        const at::Tensor& out_tNH,
                                                        const at::Tensor& lse_Nt) const {
    const int64_t num_waves =
        std::ssize(gathered_waves(q_tNH.size(1), spec.num_kv_heads, group.size()));
    PreciseSums sums(latents->parameters(), num_waves);
    at::Tensor dq_tNH = at::empty(q_tNH.sizes(), q_tNH.options()), dx_TJ;
    expand_waves(q_tNH, x_tJ,
                 [&](const GatheredHeads& wave, const LatentKeys& keys, const at::Tensor& k_TmH,
                     const at::Tensor& v_TmH, const at::Tensor& x_TJ) {
                   const AttentionGradients part =
                       kernel.backward({wave.queries(dout_tNH), wave.queries(q_tNH), k_TmH, v_TmH,
                                        wave.queries(out_tNH), wave.lse(lse_Nt)},
                                       spec, blocks);
                   wave.queries(dq_tNH).copy_(part.dq_TNH);
                   const at::ScalarType dtype = x_TJ.scalar_type();
                   const at::Tensor own =
                       keys.backward(x_TJ, {part.dk_SMH.to(dtype), part.dv_SMH.to(dtype)});
                   if (!dx_TJ.defined()) {
                     dx_TJ = own.to(part.dk_SMH.scalar_type());
                   } else {
                     dx_TJ.add_(own);
                   }
                 });
    sums.finish();
    return {dq_tNH,
            group.reduce_scatter(dx_TJ.index_select(0, row_places)).wait().to(x_tJ.dtype())};
  }
};

/// `first` and `second`: (k, v), or (latents, undefined).
struct GatherAttention : torch::autograd::Function<GatherAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_tNH, const at::Tensor& first,
                            const std::optional<at::Tensor>& second,
                            const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<GatherState> state) {
    const AttentionCheckpoint checkpoint = std::exchange(state->checkpoint, {});
    const at::Tensor sinks_N = sinks.value_or(at::Tensor());
    const at::Tensor other = second.value_or(at::Tensor());
    AttentionResult result = saved_or_computed(checkpoint, [&] {
      return with_sinks(state->forward(q_tNH, {first, other}), sinks_N, state->spec);
    });
    ctx->save_for_backward({q_tNH, first, other, result.out_TNH, result.lse_NT, sinks_N});
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    return result.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dout) {
    auto state =
        c10::static_intrusive_pointer_cast<GatherState>(ctx->saved_data["state"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    if (state->latents) {
      const auto [dq_tNH, dx_tJ] =
          state->backward_of_latents(dout[0], saved[0], saved[1], saved[3], saved[4]);
      return {dq_tNH, dx_tJ, {}, {}, {}};
    }
    AttentionGradients gradients =
        state->backward({dout[0], saved[0], saved[1], saved[2], saved[3], saved[4]});
    return {gradients.dq_TNH,
            gradients.dk_SMH,
            gradients.dv_SMH,
            sink_gradient(dout[0], {saved[3], saved[4]}, saved[5]),
            {}};
  }
};

class GatheredAttention : public SequenceParallel {
 public:
  GatheredAttention(Group group, const BlockKernel& kernel)
      : group_(std::move(group)),
        kernel_(kernel),
        in_windows_(make_zigzag_ring(Rings({group_}), group_, "llama3", kernel)) {}

  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    if (spec.window) return in_windows_->attend(inputs, spec, packing, checkpoint);
    const at::Tensor& q_tNH = inputs.q_TNH;
    check(q_tNH, packing);
    auto state =
        c10::make_intrusive<GatherState>(group_, kernel_, spec, packing, q_tNH.device(), nullptr);
    state->checkpoint = checkpoint;
    return GatherAttention::apply(q_tNH, inputs.k_SMH, as_argument(inputs.v_SMH),
                                  as_argument(inputs.sinks_N), state);
  }

  at::Tensor attend_latent(const at::Tensor& q_tNH, const at::Tensor& x_tJ,
                           const std::shared_ptr<const LatentKeys>& keys, const AttentionSpec& spec,
                           const Packing& packing, AttentionCheckpoint checkpoint) override {
    if (!gathers_latents(spec)) {
      return SequenceParallel::attend_latent(q_tNH, x_tJ, keys, spec, packing, checkpoint);
    }
    check(q_tNH, packing);
    auto state =
        c10::make_intrusive<GatherState>(group_, kernel_, spec, packing, q_tNH.device(), keys);
    state->checkpoint = checkpoint;
    return GatherAttention::apply(q_tNH, x_tJ, std::optional<at::Tensor>(),
                                  std::optional<at::Tensor>(), state);
  }

  int rank() const override { return group_.rank(); }

  TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const override {
    return zigzag_order(packing, multiple, rank, group_.size());
  }

 private:
  void check(const at::Tensor& q_tNH, const Packing& packing) const {
    TORCH_CHECK(q_tNH.size(0) * group_.size() == packing.num_tokens(), "llama3: ", q_tNH.size(0),
                " tokens on each of ", group_.size(), " ranks, but the packing describes ",
                packing.num_tokens());
  }

  Group group_;
  const BlockKernel& kernel_;
  std::unique_ptr<SequenceParallel> in_windows_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_gathered_attention(Group group, const BlockKernel& kernel) {
  return std::make_unique<GatheredAttention>(std::move(group), kernel);
}

}  // namespace longspan
