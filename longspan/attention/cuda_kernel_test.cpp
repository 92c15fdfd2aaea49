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
#include "longspan/testing/tolerance.h"

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

TEST_CASE("cuda attention: a document of 600,000 tokens, and one of 64 behind it") {
  constexpr int64_t kLong = 600'000, kShort = 64, T = kLong + kShort, N = 2;
  for (const bool deterministic : {false, true}) {
    if (!testing::has_gpu(deterministic)) return;
    CAPTURE(deterministic);
    const auto random = [](int64_t heads) {
      return at::randn({T, heads, 64}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
    };
    const AttentionGradientInputs row{random(N), random(N), random(1), random(1), {}, {}};
    const AttentionSpec spec = plain_attention(N, 1, 64);
    const BlockKernel& kernel = cuda_block_kernel();
    const std::vector<Block> blocks{{0, kLong, 0, kLong, true},
                                    {kLong, kShort, kLong, kShort, true}};
    const AttentionResult result = kernel.forward(row.q_TNH, row.k_SMH, row.v_SMH, spec, blocks);
    const AttentionGradients gradients = kernel.backward(
        {row.dout_TNH, row.q_TNH, row.k_SMH, row.v_SMH, result.out_TNH, result.lse_NT}, spec,
        blocks);
    // The last queries of each document by themselves, composed in fp64. No other query sees the
    // keys of their own tokens.
    for (const Block& document : blocks) {
      const int64_t begin = document.k_begin, end = begin + document.k_length;
      const auto part = [](const at::Tensor& x, int64_t from, int64_t to) {
        return x.narrow(0, from, to - from).to(at::kDouble);
      };
      const auto last = [&](const at::Tensor& x) { return part(x, end - kShort, end); };
      const std::vector<Block> alone{{0, kShort, 0, end - begin, true, document.k_length - kShort}};
      const at::Tensor q = last(row.q_TNH), k = part(row.k_SMH, begin, end),
                       v = part(row.v_SMH, begin, end),
                       lse = result.lse_NT.narrow(1, end - kShort, kShort).to(at::kDouble);
      const AttentionResult expected = kernel.forward(q, k, v, spec, alone);
      const AttentionGradients wanted =
          kernel.backward({last(row.dout_TNH), q, k, v, last(result.out_TNH), lse}, spec, alone);
      const auto check = [&](const at::Tensor& actual, const at::Tensor& exact, double tolerance) {
        CHECK(testing::relative_error(actual, exact) < tolerance);
      };
      const auto own = [&](const at::Tensor& x) {
        return x.narrow(0, document.k_length - kShort, kShort);
      };
      check(lse, expected.lse_NT, 64 * 0x1p-24);
      check(last(result.out_TNH), expected.out_TNH, 4 * 0x1p-9);
      check(last(gradients.dq_TNH), wanted.dq_TNH, 4 * 0x1p-9);
      check(last(gradients.dk_SMH), own(wanted.dk_SMH), 4 * 0x1p-9);
      check(last(gradients.dv_SMH), own(wanted.dv_SMH), 4 * 0x1p-9);
    }
  }
}

TEST_CASE("cuda attention: 70,000 documents of one token, more than a grid has segments") {
  if (!testing::has_gpu()) return;
  constexpr int64_t T = 70'000;
  std::vector<Block> singles;
  for (int64_t i = 0; i < T; ++i) singles.push_back({i, 1, i, 1, true});
  check_kernel(cuda_block_kernel(), at::kCUDA, at::kBFloat16, {2, 1, 64, 64},
               {"documents of one token", T, T, singles, true}, 4 * 0x1p-9);
}

void check_same_bits(int64_t T, int64_t N, int64_t M, const std::vector<Block>& blocks) {
  const auto random = [&](int64_t heads) {
    return at::randn({T, heads, 128}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  };
  const at::Tensor q = random(N), k = random(M), v = random(M), dout = random(N);
  const AttentionSpec spec = plain_attention(N, M, 128);
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

TEST_CASE("cuda attention: the same bits each time, where that is asked for") {
  if (!testing::has_gpu(/*deterministic=*/true)) return;
  check_same_bits(
      4096, 4, 2,
      {{0, 3000, 0, 3000, true}, {3000, 1096, 0, 1000, false}, {3000, 1096, 3000, 1096, true}});
  // For one head each multiprocessor has accumulators of its own, so that the row takes several
  // calls.
  check_same_bits(100'000, 1, 1, {{0, 100'000, 0, 100'000, true}});
}

}  // namespace
}  // namespace longspan
