// Llama 3's context parallelism (arXiv 2407.21783, section 3.3.2) in zigzag order: the keys and
// values of a few kv heads at a time are gathered, the next gather in flight while these are
// attended to; their gradients are reduce-scattered under the work of the next heads.
//
// Bytes sent by all R ranks together, for a padded row of T tokens, M kv heads with keys of K and
// values of V numbers, e bytes a number and g a gradient (4; 8 in fp64): all-gather (R - 1) T M
// (K + V) e in the forward and again in the backward, which has saved only this rank's keys;
// reduce-scatter (R - 1) T M (K + V) g.
//
// Of a layer with a sliding window ranks see keys of few others, and fetch them from these as a
// ring in zigzag order does (fetched_attention.h).
//
// t: this rank's tokens, T = R t: tokens of the row, N: query heads, M: kv heads, m: kv heads of a
// wave, n: their query heads, H: numbers in a head.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "longspan/attention/leaf_attention.h"
#include "longspan/attention/masked_rectangles.h"
#include "longspan/attention/sinks.h"
#include "longspan/memory/transfer.h"
#include "longspan/plan/attention_memory.h"
#include "longspan/plan/exchange_volume.h"
#include "longspan/plan/method_parts.h"
#include "longspan/sequence_parallel/ring_attention.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/sequence_parallel/zigzag_order.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Heads that are gathered together, and the query heads that use them.
struct Wave {
  int64_t kv_begin, num_kv, query_begin, num_queries;

  at::Tensor queries(const at::Tensor& x_tNH) const {
    return x_tNH.narrow(1, query_begin, num_queries);
  }
  at::Tensor keys(const at::Tensor& x_tMH) const { return x_tMH.narrow(1, kv_begin, num_kv); }
  at::Tensor lse(const at::Tensor& x_Nt) const { return x_Nt.narrow(0, query_begin, num_queries); }
};

// A gather of M / R heads is as large as what a rank holds of all M, so the buffers of a wave do
// not grow with R up to R = M. Beyond, a wave is one whole head: R / M times what a rank holds.
std::vector<Wave> waves_of(int64_t num_heads, int64_t num_kv_heads, int num_ranks) {
  const int64_t at_once = std::max<int64_t>(1, num_kv_heads / num_ranks);
  const int64_t group_size = num_heads / num_kv_heads;
  std::vector<Wave> waves;
  for (int64_t begin = 0; begin < num_kv_heads; begin += at_once) {
    const int64_t count = std::min(at_once, num_kv_heads - begin);
    waves.push_back({begin, count, begin * group_size, count * group_size});
  }
  return waves;
}

// What the queries of a rank see of the keys of the whole row, in the order of the row.
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
  return without_masked_pairs(
      blocks,
      masked_rectangles_of(
          padded, [&](int64_t token) { return zigzag_tokens_before(padded, token, rank, R); },
          [](int64_t token) { return token; }));
}

struct GatherState : torch::CustomClassHolder {
  GatherState(Group group, const BlockKernel& kernel, const AttentionSpec& spec,
              const Packing& packing, at::Device device)
      : group(std::move(group)), kernel(kernel), spec(spec) {
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
  std::vector<Block> blocks;   // of this rank's queries and the keys of the whole row
  at::Tensor row_places;       // where the tokens of rank 0, of rank 1, ... are in the row
  at::Tensor gathered_places;  // where the tokens of the row are among those

  // Calls visit(wave, k_TmH, v_TmH) for every wave.
  template <typename Visit>
  void gather_waves(const at::Tensor& q_tNH, const at::Tensor& k_tMH, const at::Tensor& v_tMH,
                    Visit visit) const {
    const std::vector<Wave> waves = waves_of(q_tNH.size(1), k_tMH.size(1), group.size());
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

  AttentionResult forward(const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                          const at::Tensor& v_tMH) const {
    std::vector<at::Tensor> out, lse;
    gather_waves(q_tNH, k_tMH, v_tMH,
                 [&](const Wave& wave, const at::Tensor& k_TmH, const at::Tensor& v_TmH) {
                   AttentionResult part =
                       kernel.forward(wave.queries(q_tNH), k_TmH, v_TmH, spec, blocks);
                   out.push_back(part.out_TNH);
                   lse.push_back(part.lse_NT);
                 });
    if (out.size() == 1) return {out[0], lse[0]};
    return {at::cat(out, 1), at::cat(lse, 0)};
  }

  AttentionGradients backward(const at::Tensor& dout_tNH, const at::Tensor& q_tNH,
                              const at::Tensor& k_tMH, const at::Tensor& v_tMH,
                              const at::Tensor& out_tNH, const at::Tensor& lse_Nt) const {
    AttentionGradients gradients{at::empty(q_tNH.sizes(), q_tNH.options()),
                                 at::empty(k_tMH.sizes(), k_tMH.options()),
                                 at::empty(v_tMH.sizes(), v_tMH.options())};
    // Of the wave before, on their way to the owners.
    std::optional<Wave> sent;
    Pending dk({}), dv({});
    auto receive = [&] {
      if (!sent) return;
      sent->keys(gradients.dk_SMH).copy_(dk.wait());
      sent->keys(gradients.dv_SMH).copy_(dv.wait());
    };
    gather_waves(q_tNH, k_tMH, v_tMH,
                 [&](const Wave& wave, const at::Tensor& k_TmH, const at::Tensor& v_TmH) {
                   const AttentionGradients part =
                       kernel.backward(wave.queries(dout_tNH), wave.queries(q_tNH), k_TmH, v_TmH,
                                       wave.queries(out_tNH), wave.lse(lse_Nt), spec, blocks);
                   wave.queries(gradients.dq_TNH).copy_(part.dq_TNH);
                   receive();
                   dk = group.reduce_scatter(part.dk_SMH.index_select(0, row_places));
                   dv = group.reduce_scatter(part.dv_SMH.index_select(0, row_places));
                   sent = wave;
                 });
    receive();
    return gradients;
  }
};

struct GatherAttention : torch::autograd::Function<GatherAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_tNH, const at::Tensor& k_tMH,
                            const at::Tensor& v_tMH, const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<GatherState> state) {
    const at::Tensor sinks_N = sinks.value_or(at::Tensor());
    AttentionResult result = saved_or_computed(
        [&] { return with_sinks(state->forward(q_tNH, k_tMH, v_tMH), sinks_N, state->spec); });
    ctx->save_for_backward({q_tNH, k_tMH, v_tMH, result.out_TNH, result.lse_NT, sinks_N});
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    return result.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dout) {
    auto state =
        c10::static_intrusive_pointer_cast<GatherState>(ctx->saved_data["state"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    AttentionGradients gradients =
        state->backward(dout[0], saved[0], saved[1], saved[2], saved[3], saved[4]);
    return {gradients.dq_TNH,
            gradients.dk_SMH,
            gradients.dv_SMH,
            sink_gradient(dout[0], {saved[3], saved[4]}, saved[5]),
            {}};
  }
};

class Llama3 : public SequenceParallel {
 public:
  Llama3(Group group, const BlockKernel& kernel)
      : group_(std::move(group)),
        kernel_(kernel),
        in_windows_(make_zigzag_ring(Rings({group_}), group_, "llama3", kernel)) {}

  at::Tensor attend(const at::Tensor& q_tNH, const at::Tensor& k_tMH, const at::Tensor& v_tMH,
                    const AttentionSpec& spec, const Packing& packing,
                    const at::Tensor& sinks_N) override {
    if (spec.window) return in_windows_->attend(q_tNH, k_tMH, v_tMH, spec, packing, sinks_N);
    TORCH_CHECK(q_tNH.size(0) * group_.size() == packing.num_tokens(), "llama3: ", q_tNH.size(0),
                " tokens on each of ", group_.size(), " ranks, but the packing describes ",
                packing.num_tokens());
    return GatherAttention::apply(
        q_tNH, k_tMH, v_tMH, as_argument(sinks_N),
        c10::make_intrusive<GatherState>(group_, kernel_, spec, packing, q_tNH.device()));
  }

  int rank() const override { return group_.rank(); }

  TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const override {
    return zigzag_order(packing, multiple, rank, group_.size());
  }

 private:
  Group group_;
  const BlockKernel& kernel_;
  std::unique_ptr<SequenceParallel> in_windows_;
};

/// Each gather brings the keys of the whole row.
RankGeometry geometry(const ParallelPlan& plan, const AttentionShape& shape, const Packing& padded,
                      int rank) {
  if (shape.spec.window) return zigzag_geometry(plan, shape, padded, rank);
  const int R = plan.ring_size;
  const int64_t T = padded.num_tokens();
  RankGeometry geometry;
  for (const Wave& wave : waves_of(shape.spec.num_heads, shape.spec.num_kv_heads, R)) {
    const HeadTokens keys{wave.kv_begin, wave.num_kv, TokenSpan{0, R, 0, T}};
    const HeadTokens queries{wave.query_begin, wave.num_queries, TokenSpan{rank, 1, 0, T / R}};
    AttentionStep& step = geometry.steps.emplace_back();
    step.context_keys.push_back(keys);
    step.calls.push_back({queries, keys, blocks_of_row(padded, rank, R)});
  }
  return geometry;
}

double gathering_seconds(const PassCost& cost, double bytes, const std::vector<double>& work) {
  if (cost.shape.spec.window) return keys_round_rings(cost, bytes, work);
  const ClusterModel& cluster = cost.cluster;
  const AttentionShape& shape = cost.shape;
  const auto waves = static_cast<double>(
      waves_of(shape.spec.num_heads, shape.spec.num_kv_heads, cost.plan.ring_size).size());
  const PassCost::Sending gather = cost.to_all(bytes / waves, cost.plan.ring_size);
  // The first keys, and the last gradients, whose copies are counted.
  const double ends =
      gather.seconds + (cost.backward ? 0.5 * (gather.seconds - gather.copying) : 0.0);
  // What is gathered is put in the order of the row, and gradients back: a read and a write.
  const double row_bytes = static_cast<double>(cost.padded.num_tokens() * shape.spec.num_kv_heads *
                                               (shape.key_bytes() + shape.value_bytes()));
  const double reordering = (cost.backward ? 4 : 2) * row_bytes / cluster.memory_bytes;
  return work[0] + reordering + ends + (waves - 1) * PassCost::exposed(gather, work[0] / waves);
}

/// A wave's keys and values in the order of the row, and the next wave's as they arrive; in the
/// backward their gradients too, and those of the wave before on their way home.
AttentionMemory memory(const ParallelPlan& plan, const AttentionShape& shape,
                       const Packing& padded) {
  if (shape.spec.window) return memory_of_degrees(plan, shape, padded);
  const int R = plan.ring_size;
  const std::vector<Wave> waves = waves_of(shape.spec.num_heads, shape.spec.num_kv_heads, R);
  const RowBytes bytes(shape);
  const auto T = static_cast<double>(padded.num_tokens());
  const double keys = T * static_cast<double>(waves[0].num_kv) * bytes.kv,
               queries = T / R * static_cast<double>(waves[0].num_queries) * bytes.query,
               outputs = T / R * static_cast<double>(shape.spec.num_heads) * bytes.output;
  const bool several = waves.size() > 1;
  AttentionMemory memory;
  memory.forward = several ? std::max(2.5 * keys, outputs) : 2 * keys;
  memory.backward = (several ? 2 : 1) * keys +
                    bytes.widening * ((2 + 1.0 / R) * keys + (several ? queries : 0.0));
  return memory;
}

std::unique_ptr<SequenceParallel> make(const ParallelPlan& /*plan*/, const Mesh& mesh,
                                       const BlockKernel& kernel) {
  return std::make_unique<Llama3>(mesh.ring, kernel);
}

}  // namespace

extern const Method kLlama3{
    .name = "llama3",
    .has_degrees = false,
    .has_windows = false,
    .head_waves = std::nullopt,
    .refusal = fits_any_heads,
    .ulysses_degrees = none_exchange_heads,
    .auto_degrees = none_exchange_heads,
    .complete = nothing_more,
    .padded_row = padded_for_zigzag,
    .token_order = zigzag_shares,
    .geometry = geometry,
    .context_seconds = gathering_seconds,
    .exchange_seconds = nothing_exchanged,
    .volume = volume_of_degrees,
    .memory = memory,
    .make = make,
};

}  // namespace longspan
