// T: this rank's tokens, S: tokens of the rank whose keys are here, N: query heads, M: kv heads, H:
// elements of a head.
#include "longspan/sequence_parallel/ring_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "longspan/attention/latent_keys.h"
#include "longspan/attention/leaf_attention.h"
#include "longspan/attention/merge.h"
#include "longspan/attention/sinks.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/linear.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/ring_parts.h"
#include "longspan/sequence_parallel/fetched_attention.h"
#include "longspan/sequence_parallel/seeing_queries.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The parts that all layers and rows share.
struct RingParts {
  Rings rings;
  Group ring;
  RingLayout layout;
  const BlockKernel& kernel;
};

/// The heads of a rank in the parts that travel. Each part has some kv heads, and their query
/// heads. Latents are one part.
class HeadParts {
 public:
  HeadParts(const Rings::Tensors& own, bool latents)
      : num_kv_heads_(latents ? 1 : own[0].size(1)),
        num_parts_(latents ? 1 : num_ring_parts(num_kv_heads_, own[0].is_cuda())) {}

  size_t size() const { return static_cast<size_t>(num_parts_); }

  /// Returns the part's heads of a tensor that has its heads in dimension `dim`.
  at::Tensor of(const at::Tensor& x, size_t part, int64_t dim = 1) const {
    if (num_parts_ == 1) return x;
    const int64_t heads_of_kv = x.size(dim) / num_kv_heads_;
    const int64_t begin = begin_of(part), end = begin_of(part + 1);
    return x.narrow(dim, begin * heads_of_kv, (end - begin) * heads_of_kv);
  }
  Rings::Parts split(const Rings::Tensors& whole) const {
    Rings::Parts parts(size());
    for (size_t part = 0; part < size(); ++part) {
      for (const at::Tensor& x : whole) parts[part].push_back(of(x, part));
    }
    return parts;
  }
  Rings::Tensors joined(Rings::Parts parts) const {
    if (num_parts_ == 1) return std::move(parts[0]);
    Rings::Tensors whole;
    for (size_t i = 0; i < parts[0].size(); ++i) {
      Rings::Tensors of_all;
      for (Rings::Tensors& part : parts) of_all.push_back(std::move(part[i]));
      whole.push_back(at::cat(of_all, 1));
    }
    return whole;
  }

 private:
  int64_t begin_of(size_t part) const {
    return num_kv_heads_ * static_cast<int64_t>(part) / num_parts_;
  }

  int64_t num_kv_heads_, num_parts_;
};

struct RingState : torch::CustomClassHolder, RingParts {
  /// `latents`: null if keys and values travel.
  RingState(const RingParts& parts, const AttentionSpec& spec, Packing packing,
            std::shared_ptr<const LatentKeys> latents)
      : RingParts(parts), spec(spec), packing(std::move(packing)), latents(std::move(latents)) {
    if (spec.window) fetched.emplace(ring, layout, kernel, spec, this->packing);
  }

  AttentionSpec spec;
  Packing packing;
  std::shared_ptr<const LatentKeys> latents;
  std::optional<FetchedAttention> fetched;  // only in a sliding window
  AttentionCheckpoint checkpoint;           // for the forward alone
  std::vector<Pending> first_hop;           // of the backward, started by a recomputation

  /// The blocks of one step, which all parts of the step share.
  class StepBlocks {
   public:
    explicit StepBlocks(const RingState& state) : state_(state) {}
    const std::vector<Block>& with(int owner) {
      if (owner != owner_) {
        blocks_ = blocks_of(state_.layout, state_.packing, state_.rings.rank(), owner,
                            state_.rings.size(), /*window=*/std::nullopt);
        owner_ = owner;
      }
      return blocks_;
    }

   private:
    const RingState& state_;
    int owner_ = -1;
    std::vector<Block> blocks_;
  };

  HeadParts parts_of(const Rings::Tensors& own) const { return {own, latents != nullptr}; }

  /// Returns the keys and values of the travelling tensors, expanding latents.
  LatentKeys::Heads heads_of(const Rings::Tensors& travelling) const {
    if (latents) return latents->expand(travelling[0]);
    return {travelling[0], travelling[1]};
  }
  /// Returns the gradients of the travelling tensors, in the dtype in which gradients travel.
  Rings::Tensors gradients_of(const Rings::Tensors& travelling, const at::Tensor& dk_SMH,
                              const at::Tensor& dv_SMH) const {
    if (!latents) return {dk_SMH, dv_SMH};
    const at::ScalarType dtype = travelling[0].scalar_type();
    return {latents->backward(travelling[0], {dk_SMH.to(dtype), dv_SMH.to(dtype)})
                .to(dk_SMH.scalar_type())};
  }

  AttentionResult forward(const at::Tensor& q_TNH, const Rings::Tensors& own) const {
    if (fetched) return fetched->forward(q_TNH, own[0], own[1]);
    const HeadParts heads = parts_of(own);
    StepBlocks blocks(*this);
    AttentionResult total;
    const auto keep = [&](const AttentionResult& result, size_t part) {
      const at::ScalarType wide = result.lse_NT.scalar_type();
      if (heads.size() == 1) {
        total = {result.out_TNH.to(wide), result.lse_NT};
        return;
      }
      if (!total.out_TNH.defined()) {
        const int64_t T = q_TNH.size(0), N = q_TNH.size(1), V = result.out_TNH.size(2);
        total = {at::empty({T, N, V}, result.lse_NT.options()),
                 at::empty({N, T}, result.lse_NT.options())};
      }
      heads.of(total.out_TNH, part).copy_(result.out_TNH);
      heads.of(total.lse_NT, part, 0).copy_(result.lse_NT);
    };
    rings.forward(heads.split(own), [&](const Rings::Tensors& travelling, int owner, size_t part) {
      const at::Tensor q_part = heads.of(q_TNH, part);
      if (owner == rings.rank()) {
        const LatentKeys::Heads kv = heads_of(travelling);
        keep(kernel.forward(q_part, kv.k_SMH, kv.v_SMH, spec, blocks.with(owner)), part);
        return;
      }
      const SeeingQueries seeing(blocks.with(owner));
      if (seeing.blocks.empty()) return;
      const LatentKeys::Heads kv = heads_of(travelling);
      AttentionResult seen{seeing.of(heads.of(total.out_TNH, part)),
                           seeing.of_lse(heads.of(total.lse_NT, part, 0))};
      merge_(seen, kernel.forward(seeing.of(q_part), kv.k_SMH, kv.v_SMH, spec, seeing.blocks));
    });
    return {total.out_TNH.to(q_TNH.scalar_type()), total.lse_NT};
  }

  /// Starts the first hop of backward().
  void start_backward(const Rings::Tensors& own) {
    for (Pending& part : first_hop) part.wait_all();  // a recomputation that no backward followed
    first_hop = rings.start_backward(parts_of(own).split(own));
  }

  /// Returns dq, and the gradients of our own tensors.
  std::pair<at::Tensor, Rings::Tensors> backward(const at::Tensor& dout_TNH,
                                                 const at::Tensor& q_TNH, const Rings::Tensors& own,
                                                 const at::Tensor& out_TNH,
                                                 const at::Tensor& lse_NT,
                                                 std::vector<Pending> arriving) const {
    if (fetched) {
      const AttentionGradients all =
          fetched->backward({dout_TNH, q_TNH, own[0], own[1], out_TNH, lse_NT});
      return {all.dq_TNH, {all.dk_SMH, all.dv_SMH}};
    }
    const HeadParts heads = parts_of(own);
    StepBlocks blocks(*this);
    at::Tensor dq_TNH;
    // Each step adds to the gradients of the parameters that expand latents.
    PreciseSums sums(latents ? latents->parameters() : std::vector<at::Tensor>{}, rings.size());
    const auto step = [&](const Rings::Tensors& travelling, int owner,
                          size_t part) -> Rings::Tensors {
      const SeeingQueries seeing(blocks.with(owner));
      if (seeing.blocks.empty()) return {};
      const LatentKeys::Heads kv = heads_of(travelling);
      const AttentionGradientInputs inputs{
          heads.of(dout_TNH, part), heads.of(q_TNH, part),    kv.k_SMH, kv.v_SMH,
          heads.of(out_TNH, part),  heads.of(lse_NT, part, 0)};
      const AttentionGradients gradients =
          kernel.backward(seeing.of(inputs, kv.k_SMH, kv.v_SMH), spec, seeing.blocks);
      if (!dq_TNH.defined() && heads.size() == 1 && seeing.length == q_TNH.size(0)) {
        dq_TNH = gradients.dq_TNH;
      } else {
        if (!dq_TNH.defined()) dq_TNH = at::zeros(q_TNH.sizes(), gradients.dq_TNH.options());
        seeing.of(heads.of(dq_TNH, part)).add_(gradients.dq_TNH);
      }
      return gradients_of(travelling, gradients.dk_SMH, gradients.dv_SMH);
    };
    Rings::Tensors down = heads.joined(rings.backward(heads.split(own), step, std::move(arriving)));
    sums.finish();
    if (!dq_TNH.defined()) dq_TNH = at::zeros_like(q_TNH);  // padding alone
    return {dq_TNH, std::move(down)};
  }
};

/// `first` and `second`: (k, v), or (latents, undefined).
struct RingFunction : torch::autograd::Function<RingFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& first,
                            const std::optional<at::Tensor>& second,
                            const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<RingState> ring) {
    const AttentionCheckpoint checkpoint = std::exchange(ring->checkpoint, {});
    const at::Tensor sinks_N = sinks.value_or(at::Tensor());
    const Rings::Tensors own = travelling(first, second.value_or(at::Tensor()));
    AttentionResult result = saved_or_computed(
        checkpoint, [&] { return with_sinks(ring->forward(q_TNH, own), sinks_N, ring->spec); });
    ctx->save_for_backward(
        {q_TNH, first, second.value_or(at::Tensor()), result.out_TNH, result.lse_NT, sinks_N});
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return result.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dout) {
    auto ring = c10::static_intrusive_pointer_cast<RingState>(ctx->saved_data["ring"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const auto [dq_TNH, down] =
        ring->backward(dout[0].contiguous(), saved[0], travelling(saved[1], saved[2]), saved[3],
                       saved[4], std::exchange(ring->first_hop, {}));
    const at::ScalarType dtype = saved[0].scalar_type();
    return {dq_TNH.to(dtype),
            down[0].to(dtype),
            down.size() > 1 ? down[1].to(dtype) : at::Tensor(),
            sink_gradient(dout[0], {saved[3], saved[4]}, saved[5]),
            {}};
  }

 private:
  static Rings::Tensors travelling(const at::Tensor& first, const at::Tensor& second) {
    if (second.defined()) return {first, second};
    return {first};
  }
};

class RingAttention : public SequenceParallel {
 public:
  RingAttention(Rings rings, Group ring, RingLayout layout, const BlockKernel& kernel)
      : parts_{std::move(rings), std::move(ring), layout, kernel} {}

  at::Tensor attend(const AttentionInputs& inputs, const AttentionSpec& spec,
                    const Packing& packing, AttentionCheckpoint checkpoint) override {
    check(inputs.q_TNH, packing);
    auto state = c10::make_intrusive<RingState>(parts_, spec, packing, nullptr);
    state->checkpoint = checkpoint;
    if (!state->fetched && needs_backward({inputs.q_TNH, inputs.k_SMH, inputs.v_SMH}, {})) {
      checkpoint.prefetch(inputs.k_SMH, inputs.v_SMH, [state](const auto& k, const auto& v) {
        state->start_backward({k.detach(), v.detach()});
      });
    }
    return RingFunction::apply(inputs.q_TNH, inputs.k_SMH, as_argument(inputs.v_SMH),
                               as_argument(inputs.sinks_N), state);
  }

  at::Tensor attend_latent(const at::Tensor& q_TNH, const at::Tensor& x_TJ,
                           const std::shared_ptr<const LatentKeys>& keys, const AttentionSpec& spec,
                           const Packing& packing, AttentionCheckpoint checkpoint) override {
    if (!passes_latents(spec, /*ulysses_size=*/1, /*head_waves=*/1)) {
      return SequenceParallel::attend_latent(q_TNH, x_TJ, keys, spec, packing, checkpoint);
    }
    check(q_TNH, packing);
    auto state = c10::make_intrusive<RingState>(parts_, spec, packing, keys);
    state->checkpoint = checkpoint;
    return RingFunction::apply(q_TNH, x_TJ, std::optional<at::Tensor>(),
                               std::optional<at::Tensor>(), state);
  }

  int rank() const override { return parts_.rings.rank(); }

  TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const override {
    return parts_.layout.token_order(packing, multiple, rank, parts_.rings.size());
  }

 private:
  void check(const at::Tensor& q_TNH, const Packing& packing) const {
    TORCH_CHECK(q_TNH.size(0) * parts_.rings.size() == packing.num_tokens(), parts_.layout.name,
                ": ", q_TNH.size(0), " tokens on each of ", parts_.rings.size(),
                " ranks, but the packing describes ", packing.num_tokens());
  }

  RingParts parts_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_ring_attention(Rings rings, Group ring, RingLayout layout,
                                                      const BlockKernel& kernel) {
  return std::make_unique<RingAttention>(std::move(rings), std::move(ring), layout, kernel);
}

}  // namespace longspan
