#include "longspan/attention/packed_calls.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "longspan/testing/kernel_check.h"

namespace longspan {
namespace {

/// A varlen kernel within limits: each call by the CPU's kernel.
class LimitedKernel : public BlockKernel {
 public:
  explicit LimitedKernel(CallLimits limits) : limits_(std::move(limits)) {}
  KernelAbilities abilities() const override { return {.name = "a test's", .window = true}; }

 protected:
  AttentionResult forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override {
    return forward_packed(q, k, v, blocks, limits_, spec.key_dim,
                          [&](const PackedCall& call, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v) -> std::pair<at::Tensor, at::Tensor> {
                            const AttentionResult result =
                                cpu_block_kernel().forward(q, k, v, spec, blocks_of(call, q, k));
                            return {result.out_TNH, result.lse_NT};
                          });
  }
  AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                     const AttentionSpec& spec,
                                     const std::vector<Block>& blocks) const override {
    return backward_packed(inputs, blocks, limits_, spec.key_dim,
                           [&](const PackedCall& call, const AttentionGradientInputs& packed) {
                             const AttentionGradients gradients = cpu_block_kernel().backward(
                                 packed, spec, blocks_of(call, packed.q_TNH, packed.k_SMH));
                             return std::tuple(gradients.dq_TNH, gradients.dk_SMH,
                                               gradients.dv_SMH);
                           });
  }

 private:
  /// The segments of a call, from all that a varlen kernel gets.
  static std::vector<Block> blocks_of(const PackedCall& call, const at::Tensor& q,
                                      const at::Tensor& k) {
    const int *const queries = call.queries.boundaries.const_data_ptr<int>(),
                     *const keys = call.keys.boundaries.const_data_ptr<int>();
    const int64_t count = call.queries.boundaries.size(0) - 1;
    CHECK(queries[count] == q.size(0));
    CHECK(keys[count] == k.size(0));
    std::vector<Block> blocks;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t q_length = queries[i + 1] - queries[i], k_length = keys[i + 1] - keys[i];
      Block block{queries[i], q_length, keys[i], k_length, call.causal};
      if (call.causal) block.offset = k_length - q_length;
      if (call.left()) block.lower = k_length - q_length - *call.left();
      blocks.push_back(block);
    }
    return blocks;
  }

  CallLimits limits_;
};

TEST_CASE("packed calls: split at every limit, they are one attention") {
  std::vector<testing::KernelCase> cases = testing::kernel_cases();
  cases.push_back({"documents in parts",
                   1100,
                   1100,
                   {{0, 40, 0, 40, true}, {40, 700, 40, 700, true}, {740, 360, 740, 360, true}}});
  cases.push_back({"a window in parts", 1000, 1000, {{0, 1000, 0, 1000, true, 0, -150}}});
  // Parts of 128 queries, which no more than two calls share; a bucket for each length.
  const FlashAccumulators accumulators{.num_heads = 16'384, .head_dim = 128};
  REQUIRE(accumulators.most_queries() == 128);
  const LimitedKernel unlimited({}), limited({2, true, accumulators});
  for (const testing::KernelCase& one : cases) {
    for (const LimitedKernel* kernel : {&unlimited, &limited}) {
      testing::check_kernel(*kernel, at::kCPU, at::kDouble, {4, 2, 16, 16}, one, 1e-12);
    }
  }
}

}  // namespace
}  // namespace longspan
