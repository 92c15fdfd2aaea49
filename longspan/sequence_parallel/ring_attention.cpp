// T: this rank's tokens, S: tokens of the rank whose keys are here, N: query heads, M: kv heads,
// H: numbers in a head.
#include "longspan/sequence_parallel/ring_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "longspan/attention/leaf_attention.h"
#include "longspan/attention/merge.h"
#include "longspan/attention/sinks.h"
#include "longspan/sequence_parallel/fetched_attention.h"
#include "longspan/sequence_parallel/seeing_queries.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RingState : torch::CustomClassHolder {
  RingState(Rings rings, const Group& ring, RingLayout layout, const BlockKernel& kernel,
            const AttentionSpec& spec, Packing packing)
      : rings(std::move(rings)),
        layout(layout),
        kernel(kernel),
        spec(spec),
        packing(std::move(packing)) {
    if (spec.window) fetched.emplace(ring, layout, kernel, spec, this->packing);
  }

  Rings rings;
  RingLayout layout;
  const BlockKernel& kernel;
  AttentionSpec spec;
  Packing packing;
  std::optional<FetchedAttention> fetched;  // in a sliding window

  std::vector<Block> blocks(int owner) const {
    return blocks_of(layout, packing, rings.rank(), owner, rings.size(), /*window=*/std::nullopt);
  }

  AttentionResult forward(const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                          const at::Tensor& v_TMH) const {
    if (fetched) return fetched->forward(q_TNH, k_TMH, v_TMH);
    AttentionResult total;
    rings.forward({k_TMH, v_TMH}, [&](const Rings::Tensors& kv, int owner) {
      if (!total.out_TNH.defined()) {  // our own keys
        total = kernel.forward(q_TNH, kv[0], kv[1], spec, blocks(owner));
        total.out_TNH = total.out_TNH.to(total.lse_NT.scalar_type());
        return;
      }
      const SeeingQueries seeing(blocks(owner));
      if (seeing.blocks.empty()) return;
      AttentionResult seen{seeing.of(total.out_TNH), seeing.of_lse(total.lse_NT)};
      merge_(seen, kernel.forward(seeing.of(q_TNH), kv[0], kv[1], spec, seeing.blocks));
    });
    return {total.out_TNH.to(q_TNH.scalar_type()), total.lse_NT};
  }

  AttentionGradients backward(const at::Tensor& dout_TNH, const at::Tensor& q_TNH,
                              const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                              const at::Tensor& out_TNH, const at::Tensor& lse_NT) const {
    if (fetched) return fetched->backward(dout_TNH, q_TNH, k_TMH, v_TMH, out_TNH, lse_NT);
    at::Tensor dq_TNH;
    const Rings::Tensors dkv =
        rings.backward({k_TMH, v_TMH}, [&](const Rings::Tensors& kv, int owner) -> Rings::Tensors {
          if (!dq_TNH.defined()) {  // our own keys
            AttentionGradients own = kernel.backward(dout_TNH, q_TNH, kv[0], kv[1], out_TNH, lse_NT,
                                                     spec, blocks(owner));
            dq_TNH = own.dq_TNH;
            return {own.dk_SMH, own.dv_SMH};
          }
          const SeeingQueries seeing(blocks(owner));
          if (seeing.blocks.empty()) return {};
          AttentionGradients part =
              kernel.backward(seeing.of(dout_TNH), seeing.of(q_TNH), kv[0], kv[1],
                              seeing.of(out_TNH), seeing.of_lse(lse_NT), spec, seeing.blocks);
          seeing.of(dq_TNH).add_(part.dq_TNH);
          return {part.dk_SMH, part.dv_SMH};
        });
    return {dq_TNH, dkv[0], dkv[1]};
  }
};

struct RingFunction : torch::autograd::Function<RingFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                            const at::Tensor& v_TMH, const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<RingState> ring) {
    const at::Tensor sinks_N = sinks.value_or(at::Tensor());
    AttentionResult result = saved_or_computed(
        [&] { return with_sinks(ring->forward(q_TNH, k_TMH, v_TMH), sinks_N, ring->spec); });
    ctx->save_for_backward({q_TNH, k_TMH, v_TMH, result.out_TNH, result.lse_NT, sinks_N});
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return result.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dout) {
    auto ring = c10::static_intrusive_pointer_cast<RingState>(ctx->saved_data["ring"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const AttentionGradients gradients =
        ring->backward(dout[0].contiguous(), saved[0], saved[1], saved[2], saved[3], saved[4]);
    const at::ScalarType dtype = saved[0].scalar_type();
    return {gradients.dq_TNH.to(dtype),
            gradients.dk_SMH.to(dtype),
            gradients.dv_SMH.to(dtype),
            sink_gradient(dout[0], {saved[3], saved[4]}, saved[5]),
            {}};
  }
};

class RingAttention : public SequenceParallel {
 public:
  RingAttention(Rings rings, Group ring, RingLayout layout, const BlockKernel& kernel)
      : rings_(std::move(rings)), ring_(std::move(ring)), layout_(layout), kernel_(kernel) {}

  at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                    const AttentionSpec& spec, const Packing& packing,
                    const at::Tensor& sinks_N) override {
    TORCH_CHECK(q_TNH.size(0) * rings_.size() == packing.num_tokens(), layout_.name, ": ",
                q_TNH.size(0), " tokens on each of ", rings_.size(),
                " ranks, but the packing describes ", packing.num_tokens());
    return RingFunction::apply(
        q_TNH, k_TMH, v_TMH, as_argument(sinks_N),
        c10::make_intrusive<RingState>(rings_, ring_, layout_, kernel_, spec, packing));
  }

  int rank() const override { return rings_.rank(); }

  TokenOrder token_order_of(int rank, const Packing& packing, int64_t multiple) const override {
    return layout_.token_order(packing, multiple, rank, rings_.size());
  }

 private:
  Rings rings_;
  Group ring_;
  RingLayout layout_;
  const BlockKernel& kernel_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_ring_attention(Rings rings, Group ring, RingLayout layout,
                                                      const BlockKernel& kernel) {
  return std::make_unique<RingAttention>(std::move(rings), std::move(ring), layout, kernel);
}

}  // namespace longspan
