// Ring attention (arXiv 2310.01889) in zigzag order: every rank has the same work in every step.
// T: this rank's tokens, N: query heads, M: kv heads, H: head dim. R: ranks of the ring.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "longspan/attention/leaf_attention.h"
#include "longspan/sequence_parallel/padding.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A document of 2 R c tokens is cut in chunks of c, of which rank r holds r and 2R-1-r, one behind
// the other: 2c consecutive local tokens.
struct RingState : torch::CustomClassHolder {
  const BlockKernel* kernel = nullptr;
  Group group;
  Packing packing;

  int owner_at(int step) const { return (group.rank() - step + group.size()) % group.size(); }

  // What this rank's queries see of the keys that rank `owner` holds.
  std::vector<Block> blocks(int owner) const {
    std::vector<Block> blocks;
    for (int64_t document = 0; document < packing.num_documents(); ++document) {
      const int64_t both = packing.length(document) / group.size(), chunk = both / 2;
      const int64_t begin = packing.begin(document) / group.size();
      if (owner == group.rank()) {
        blocks.push_back({begin, both, begin, both, true});
      } else if (owner < group.rank()) {  // its first chunk is before both of ours
        blocks.push_back({begin, both, begin, chunk, false});
      } else {  // both of its chunks are before our second one, and after our first
        blocks.push_back({begin + chunk, chunk, begin, both, false});
      }
    }
    return blocks;
  }
};

// out and lse of the union of two disjoint sets of keys, in place in the first:
// out' = out sigmoid(lse - lse_b) + out_b sigmoid(lse_b - lse), lse' = log(e^lse + e^lse_b).
void merge_(AttentionResult& total, const AttentionResult& part) {
  const at::Tensor weight_TN1 =
      at::sigmoid(part.lse_NT - total.lse_NT).transpose(0, 1).unsqueeze(-1);
  total.out_TNH.lerp_(part.out_TNH.to(total.out_TNH.scalar_type()), weight_TN1);
  total.lse_NT = at::logaddexp(total.lse_NT, part.lse_NT);
}

AttentionResult ring_forward(const RingState& ring, const at::Tensor& q_TNH,
                             const at::Tensor& k_TMH, const at::Tensor& v_TMH) {
  const int num_steps = ring.group.size();
  std::vector<at::Tensor> kv{k_TMH, v_TMH};
  AttentionResult total;
  for (int step = 0; step < num_steps; ++step) {
    const bool more = step + 1 < num_steps;
    Pending next = more ? ring.group.shift(kv) : Pending({});
    AttentionResult part =
        ring.kernel->forward(q_TNH, kv[0], kv[1], ring.blocks(ring.owner_at(step)));
    if (step == 0) {
      total = {part.out_TNH.to(part.lse_NT.scalar_type()), part.lse_NT};
    } else {
      merge_(total, part);
    }
    if (more) kv = next.wait_all();
  }
  return {total.out_TNH.to(q_TNH.scalar_type()), total.lse_NT};
}

struct ZigzagRingAttention : torch::autograd::Function<ZigzagRingAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                            const at::Tensor& v_TMH, c10::intrusive_ptr<RingState> ring) {
    AttentionResult result =
        kept_or_computed([&] { return ring_forward(*ring, q_TNH, k_TMH, v_TMH); });
    ctx->save_for_backward({q_TNH, k_TMH, v_TMH, result.out_TNH, result.lse_NT});
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return result.out_TNH;
  }

  // Keys travel as in the forward. The gradients of a rank's keys set out from its neighbour, one
  // step behind the keys, and gather what each rank adds, back to the owner: R - 1 hops.
  static variable_list backward(AutogradContext* ctx, variable_list dout) {
    auto ring = c10::static_intrusive_pointer_cast<RingState>(ctx->saved_data["ring"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &q_TNH = saved[0], &out_TNH = saved[3], &lse_NT = saved[4];
    const at::Tensor dout_TNH = dout[0].contiguous();
    const int num_steps = ring->group.size();
    std::vector<at::Tensor> kv{saved[1], saved[2]};
    AttentionGradients own;
    Pending travelling({});
    for (int step = 0; step < num_steps; ++step) {
      const bool more = step + 1 < num_steps;
      Pending next = more ? ring->group.shift(kv) : Pending({});
      AttentionGradients part = ring->kernel->backward(dout_TNH, q_TNH, kv[0], kv[1], out_TNH,
                                                       lse_NT, ring->blocks(ring->owner_at(step)));
      if (step == 0) {
        own = std::move(part);
      } else {
        own.dq_TNH.add_(part.dq_TNH);
        if (step > 1) {
          const std::vector<at::Tensor> so_far = travelling.wait_all();
          part.dk_SMH.add_(so_far[0]);
          part.dv_SMH.add_(so_far[1]);
        }
        travelling = ring->group.shift({part.dk_SMH, part.dv_SMH});
      }
      if (more) kv = next.wait_all();
    }
    if (num_steps > 1) {
      const std::vector<at::Tensor> from_others = travelling.wait_all();
      own.dk_SMH = own.dk_SMH + from_others[0];
      own.dv_SMH = own.dv_SMH + from_others[1];
    }
    const at::ScalarType dtype = q_TNH.scalar_type();
    return {own.dq_TNH.to(dtype), own.dk_SMH.to(dtype), own.dv_SMH.to(dtype), {}};
  }
};

class ZigzagRing : public SequenceParallel {
 public:
  ZigzagRing(Group group, const BlockKernel& kernel) : group_(std::move(group)), kernel_(kernel) {}

  at::Tensor attend(const at::Tensor& q_TNH, const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                    const Packing& packing) override {
    TORCH_CHECK(q_TNH.size(0) * group_.size() == packing.num_tokens(),
                "zigzag ring: ", q_TNH.size(0), " tokens on each of ", group_.size(),
                " ranks, but the packing describes ", packing.num_tokens());
    auto ring = c10::make_intrusive<RingState>();
    ring->kernel = &kernel_;
    ring->group = group_;
    ring->packing = packing;
    return ZigzagRingAttention::apply(q_TNH, k_TMH, v_TMH, ring);
  }

  TokenOrder token_order(const Packing& packing, int64_t multiple) const override {
    const int64_t R = group_.size();
    TokenOrder order;
    order.packing = pad_documents(packing, 2 * R);
    // Each rank's share is even; a document of padding makes it a multiple of what is asked for.
    int64_t extra = 0;
    while ((order.packing.num_tokens() / R + extra) % multiple != 0) extra += 2;
    if (extra > 0) order.packing = pad_tail(order.packing, order.packing.num_tokens() + extra * R);
    for (int64_t document = 0; document < order.packing.num_documents(); ++document) {
      const int64_t chunk = order.packing.length(document) / (2 * R);
      const bool padding = document >= packing.num_documents();
      const int64_t length = padding ? 0 : packing.length(document);
      for (int64_t c : {int64_t{group_.rank()}, 2 * R - 1 - group_.rank()}) {
        for (int64_t i = c * chunk; i < (c + 1) * chunk; ++i) {
          order.index.push_back(i < length ? packing.begin(document) + i : -1);
        }
      }
    }
    return order;
  }

 private:
  Group group_;
  const BlockKernel& kernel_;
};

}  // namespace

std::unique_ptr<SequenceParallel> make_zigzag_ring(Group group, const BlockKernel& kernel) {
  return std::make_unique<ZigzagRing>(std::move(group), kernel);
}

}  // namespace longspan
