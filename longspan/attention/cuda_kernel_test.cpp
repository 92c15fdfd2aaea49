// Compares CUDA's attention with the CPU's in fp64, which has its own test.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <utility>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/call_plan.h"
#include "longspan/attention/cudnn_attention.h"
#include "longspan/attention/flash3_attention.h"
#include "longspan/testing/gpu.h"
#include "longspan/testing/kernel_check.h"

namespace longspan {
namespace {

using testing::check_kernel;
using testing::KernelCase;
using testing::KernelShape;

TEST_CASE("cuda attention: beside fp64, in the numbers that models train in") {
  if (!testing::has_gpu()) return;
  // bf16: weights (or their gradients) and products with them are rounded, 2^-9 each at most, and
  // some terms of a sum cancel. fp32: 64 roundings of 2^-24. fp64: as on the CPU.
  const std::vector<std::pair<at::ScalarType, double>> kinds{{at::kBFloat16, 4 * 0x1p-9},
                                                             {at::kHalf, 4 * 0x1p-12},
                                                             {at::kFloat, 64 * 0x1p-24},
                                                             {at::kDouble, 1e-12}};
  for (const auto& [dtype, tolerance] : kinds) {
    for (const KernelCase& one : testing::kernel_cases()) {
      for (const KernelShape& shape : {KernelShape{6, 2, 64, 64},
                                       {4, 4, 128, 128},
                                       {5, 1, 96, 64},
                                       {4, 2, 256, 256},
                                       {2, 1, 40, 24, 2.5}}) {
        check_kernel(cuda_block_kernel(), at::kCUDA, dtype, shape, one, tolerance);
      }
    }
  }
}

TEST_CASE("cuda attention: cuDNN's of long blocks, where the same bits are not asked for") {
  if (!testing::has_gpu(/*deterministic=*/false)) return;
  const std::vector<KernelCase> long_blocks{
      {"one document, filled up", 2500, 2500, {{0, 2500, 0, 2500, true}}},
      {"two of them, and queries without a block",
       5000,
       5000,
       {{0, 2048, 0, 2048, true}, {2100, 2900, 2100, 2900, true}}},
      {"a step of a ring", 2048, 3072, {{0, 2048, 0, 3072, false}}},
      {"long and short documents, and a window",
       5000,
       5000,
       {{0, 2100, 0, 2100, true},
        {2100, 300, 2100, 300, true},
        {2400, 2600, 2400, 2600, true, 0, -99}}},
  };
  for (const KernelCase& one : long_blocks) {
    for (const KernelShape& shape : {KernelShape{4, 2, 64, 64}, {2, 1, 128, 128}}) {
      const at::Tensor q = at::empty({one.T, shape.N, shape.key_dim},
                                     at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
      CHECK(!by_kernel(one.blocks).cudnn.empty());
      if (!cudnn::takes(q, plain_attention(shape.N, shape.M, shape.key_dim))) {
        MESSAGE("not run: this GPU's attention is not cuDNN's");
        return;
      }
      check_kernel(cuda_block_kernel(), at::kCUDA, at::kBFloat16, shape, one, 4 * 0x1p-9);
    }
  }
}

TEST_CASE("cuda attention: FlashAttention 3, where it is installed") {
  if (!testing::has_gpu()) return;
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kBFloat16, 4 * 0x1p-9}, {at::kHalf, 4 * 0x1p-12}}) {
    for (const KernelShape& shape : {KernelShape{6, 2, 64, 64},
                                     {4, 4, 128, 128},
                                     {5, 1, 96, 60},
                                     {2, 2, 192, 128},
                                     {4, 2, 256, 256}}) {
      const at::Tensor q = at::empty({1, 1, 1}, at::TensorOptions(at::kCUDA).dtype(dtype));
      AttentionSpec spec = plain_attention(shape.N, shape.M, shape.key_dim);
      const BlockKernel* kernel = flash3::kernel_for(q, spec, /*backward=*/false);
      if (kernel == nullptr) {
        MESSAGE("not run: no FlashAttention 3 for this GPU is installed beside torch");
        return;
      }
      // CUDA's attention has no bit-reproducible backward for head dim 256.
      use_gpu(0, {.deterministic = shape.key_dim <= 192});
      for (const KernelCase& one : testing::kernel_cases()) {
        check_kernel(*kernel, at::kCUDA, dtype, shape, one, tolerance);
      }
    }
  }
}

TEST_CASE("cuda attention: the same bits each time, where that is asked for") {
  if (!testing::has_gpu(/*deterministic=*/true)) return;
  const auto random = [](int64_t heads) {
    return at::randn({4096, heads, 128}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  };
  const at::Tensor q = random(4), k = random(2), v = random(2), dout = random(4);
  const AttentionSpec spec = plain_attention(4, 2, 128);
  const std::vector<Block> blocks{
      {0, 3000, 0, 3000, true}, {3000, 1096, 0, 1000, false}, {3000, 1096, 3000, 1096, true}};
  const BlockKernel& kernel = cuda_block_kernel();
  const AttentionResult result = kernel.forward(q, k, v, spec, blocks);
  const auto backward = [&] {
    return kernel.backward({dout, q, k, v, result.out_TNH, result.lse_NT}, spec, blocks);
  };
  const AttentionGradients first = backward();
  for (int time = 0; time < 5; ++time) {
    const AttentionGradients again = backward();
    CHECK(again.dq_TNH.equal(first.dq_TNH));
    CHECK(again.dk_SMH.equal(first.dk_SMH));
    CHECK(again.dv_SMH.equal(first.dv_SMH));
  }
}

}  // namespace
}  // namespace longspan
