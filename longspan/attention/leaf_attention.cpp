// T: tokens, N: query heads, M: kv heads, H: numbers in a head.
#include "longspan/attention/leaf_attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "longspan/attention/sinks.h"
#include "longspan/attention/sliding_window.h"

namespace longspan {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LeafState : torch::CustomClassHolder {
  const BlockKernel* kernel = nullptr;
  AttentionSpec spec;
  std::vector<Block> blocks;
  AttentionCheckpoint checkpoint;  // for the forward alone
};

struct LeafAttention : torch::autograd::Function<LeafAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q_TNH, const at::Tensor& k_TMH,
                            const at::Tensor& v_TMH, const std::optional<at::Tensor>& sinks,
                            c10::intrusive_ptr<LeafState> state) {
    const AttentionCheckpoint checkpoint = std::exchange(state->checkpoint, {});
    const at::Tensor sinks_N = sinks.value_or(at::Tensor());
    AttentionResult result = saved_or_computed(checkpoint, [&] {
      return with_sinks(state->kernel->forward(q_TNH, k_TMH, v_TMH, state->spec, state->blocks),
                        sinks_N, state->spec);
    });
    ctx->save_for_backward({q_TNH, k_TMH, v_TMH, result.out_TNH, result.lse_NT, sinks_N});
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    return result.out_TNH;
  }

  static variable_list backward(AutogradContext* ctx, variable_list dout) {
    auto state =
        c10::static_intrusive_pointer_cast<LeafState>(ctx->saved_data["state"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const at::ScalarType dtype = saved[0].scalar_type();
    AttentionGradients gradients = state->kernel->backward(
        {dout[0], saved[0], saved[1], saved[2], saved[3], saved[4]}, state->spec, state->blocks);
    return {gradients.dq_TNH.to(dtype),
            gradients.dk_SMH.to(dtype),
            gradients.dv_SMH.to(dtype),
            sink_gradient(dout[0], {saved[3], saved[4]}, saved[5]),
            {}};
  }
};

}  // namespace

at::Tensor leaf_attention(const BlockKernel& kernel, const AttentionInputs& inputs,
                          const AttentionSpec& spec, const Packing& packing,
                          AttentionCheckpoint checkpoint) {
  const int64_t num_tokens = inputs.q_TNH.size(0);
  TORCH_CHECK(num_tokens == packing.num_tokens(), "attention: ", num_tokens,
              " tokens, but the packing describes ", packing.num_tokens());
  return leaf_attention(kernel, inputs, spec, causal_blocks(packing, spec.window), checkpoint);
}

at::Tensor leaf_attention(const BlockKernel& kernel, const AttentionInputs& inputs,
                          const AttentionSpec& spec, std::vector<Block> blocks,
                          AttentionCheckpoint checkpoint) {
  auto state = c10::make_intrusive<LeafState>();
  state->kernel = &kernel;
  state->spec = spec;
  state->blocks = std::move(blocks);
  state->checkpoint = checkpoint;
  return LeafAttention::apply(inputs.q_TNH, inputs.k_SMH, inputs.v_SMH, as_argument(inputs.sinks_N),
                              state);
}

AttentionResult saved_or_computed(AttentionCheckpoint checkpoint,
                                  const std::function<AttentionResult()>& compute) {
  if (checkpoint.replays()) return checkpoint.next();
  AttentionResult result = compute();
  if (checkpoint.saves()) checkpoint.save(result);
  return result;
}

}  // namespace longspan
