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
#include "longspan/kernels/linear.h"
#include "longspan/plan/attention_volume.h"
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

  std::vector<Block> blocks(int owner) const {
    return blocks_of(layout, packing, rings.rank(), owner, rings.size(), /*window=*/std::nullopt);
  }

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
    AttentionResult total;
    rings.forward(own, [&](const Rings::Tensors& travelling, int owner) {
      if (!total.out_TNH.defined()) {  // our own keys
        const LatentKeys::Heads kv = heads_of(travelling);
        total = kernel.forward(q_TNH, kv.k_SMH, kv.v_SMH, spec, blocks(owner));
        total.out_TNH = total.out_TNH.to(total.lse_NT.scalar_type());
        return;
      }
      const SeeingQueries seeing(blocks(owner));
      if (seeing.blocks.empty()) return;
      const LatentKeys::Heads kv = heads_of(travelling);
      AttentionResult seen{seeing.of(total.out_TNH), seeing.of_lse(total.lse_NT)};
      merge_(seen, kernel.forward(seeing.of(q_TNH), kv.k_SMH, kv.v_SMH, spec, seeing.blocks));
    });
    return {total.out_TNH.to(q_TNH.scalar_type()), total.lse_NT};
  }

  /// Returns dq, and the gradients of our own tensors.
  std::pair<at::Tensor, Rings::Tensors> backward(const at::Tensor& dout_TNH,
                                                 const at::Tensor& q_TNH, const Rings::Tensors& own,
                                                 const at::Tensor& out_TNH,
                                                 const at::Tensor& lse_NT) const {
    if (fetched) {
      const AttentionGradients all =
          fetched->backward({dout_TNH, q_TNH, own[0], own[1], out_TNH, lse_NT});
      return {all.dq_TNH, {all.dk_SMH, all.dv_SMH}};
    }
    const auto inputs_with = [&](const LatentKeys::Heads& kv) -> AttentionGradientInputs {
      return {dout_TNH, q_TNH, kv.k_SMH, kv.v_SMH, out_TNH, lse_NT};
    };
    at::Tensor dq_TNH;
    // Each step adds to the gradients of the parameters that expand latents.
    PreciseSums sums(latents ? latents->parameters() : std::vector<at::Tensor>{}, rings.size());
    Rings::Tensors down =
        rings.backward(own, [&](const Rings::Tensors& travelling, int owner) -> Rings::Tensors {
          if (!dq_TNH.defined()) {  // our own keys
            const LatentKeys::Heads kv = heads_of(travelling);
            AttentionGradients part = kernel.backward(inputs_with(kv), spec, blocks(owner));
            dq_TNH = part.dq_TNH;
            return gradients_of(travelling, part.dk_SMH, part.dv_SMH);
          }
          const SeeingQueries seeing(blocks(owner));
          if (seeing.blocks.empty()) return {};
          const LatentKeys::Heads kv = heads_of(travelling);
          AttentionGradients part =
              kernel.backward(seeing.of(inputs_with(kv), kv.k_SMH, kv.v_SMH), spec, seeing.blocks);
          seeing.of(dq_TNH).add_(part.dq_TNH);
          return gradients_of(travelling, part.dk_SMH, part.dv_SMH);
        });
    sums.finish();
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
    const auto [dq_TNH, down] = ring->backward(dout[0].contiguous(), saved[0],
                                               travelling(saved[1], saved[2]), saved[3], saved[4]);
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
