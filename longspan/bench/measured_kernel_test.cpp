#include "longspan/bench/measured_kernel.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>

namespace longspan {
namespace {

double count_one_by_one(const Block& block) {
  double pairs = 0;
  for (int64_t i = 0; i < block.q_length; ++i) {
    for (int64_t j = 0; j < block.k_length; ++j) {
      if (!block.causal || j <= i + block.offset) ++pairs;
    }
  }
  return pairs;
}

}  // namespace

TEST_CASE("measured kernel: pairs of blocks of every shape") {
  double sum = 0;
  std::vector<Block> all;
  for (const bool causal : {false, true}) {
    for (int64_t q = 0; q < 5; ++q) {
      for (int64_t k = 0; k < 6; ++k) {
        for (int64_t offset = 0; offset < 8; ++offset) {
          const Block block{0, q, 0, k, causal, offset};
          CHECK(pairs_of({block}) == count_one_by_one(block));
          all.push_back(block);
          sum += count_one_by_one(block);
        }
      }
    }
  }
  CHECK(pairs_of(all) == sum);
}

TEST_CASE("measured kernel: the kernel's results; work since the last look") {
  const MeasuredKernel measured(cpu_block_kernel());
  const at::Tensor q_TNH = at::randn({64, 4, 16}), k_SMH = at::randn({64, 2, 16});
  const at::Tensor v_SMH = at::randn({64, 2, 16}), dout_TNH = at::randn({64, 4, 16});
  const std::vector<Block> blocks{{0, 40, 0, 40, true}, {40, 24, 40, 24, true}};
  const AttentionSpec spec = plain_attention(4, 2, 16);
  const double pairs = 4 * (40 * 41 / 2 + 24 * 25 / 2);
  const AttentionResult result = measured.forward(q_TNH, k_SMH, v_SMH, spec, blocks);
  CHECK(
      result.out_TNH.equal(cpu_block_kernel().forward(q_TNH, k_SMH, v_SMH, spec, blocks).out_TNH));
  for (int i = 0; i < 2; ++i) {
    const AttentionGradients gradients = measured.backward(
        {dout_TNH, q_TNH, k_SMH, v_SMH, result.out_TNH, result.lse_NT}, spec, blocks);
    CHECK(gradients.dq_TNH.sizes() == q_TNH.sizes());
  }
  CHECK(measured.take_forward().pairs == pairs);
  const KernelWork backward = measured.take_backward();
  CHECK(backward.pairs == 2 * pairs);
  CHECK(backward.seconds > 0);
  CHECK(measured.take_forward().pairs == 0);
  CHECK(measured.take_backward().seconds == 0);
}

}  // namespace longspan
