#include "longspan/testing/accelerator/attention.h"

#include <utility>

#include "longspan/testing/accelerator/accelerator.h"

namespace longspan::testing::accelerator {
namespace {

class LaunchedKernel : public BlockKernel {
 public:
  KernelAbilities abilities() const override {
    KernelAbilities abilities = cpu_block_kernel().abilities();
    abilities.name = "The attention kernel of the simulated accelerator";
    return abilities;
  }

 protected:
  AttentionResult forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override {
    Tensors made = run_kernel("attention", {q, k, v}, {}, [&](const Tensors& x) -> Tensors {
      AttentionResult result = cpu_block_kernel().forward(x[0], x[1], x[2], spec, blocks);
      return {std::move(result.out_TNH), std::move(result.lse_NT)};
    });
    return {std::move(made[0]), std::move(made[1])};
  }

  AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override {
    Tensors made = run_kernel(
        "attention_backward",
        {inputs.dout_TNH, inputs.q_TNH, inputs.k_SMH, inputs.v_SMH, inputs.out_TNH, inputs.lse_NT},
        {}, [&](const Tensors& x) -> Tensors {
          AttentionGradients gradients =
              cpu_block_kernel().backward({x[0], x[1], x[2], x[3], x[4], x[5]}, spec, blocks);
          return {std::move(gradients.dq_TNH), std::move(gradients.dk_SMH),
                  std::move(gradients.dv_SMH)};
        });
    return {std::move(made[0]), std::move(made[1]), std::move(made[2])};
  }
};

}  // namespace

const BlockKernel& block_kernel() {
  static const LaunchedKernel kernel;
  return kernel;
}

}  // namespace longspan::testing::accelerator
