// The attention of CUDA beside the CPU's in fp64, which has a test of its own.
// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: head dim.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/cudnn_attention.h"
#include "longspan/testing/gpu.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

struct Case {
  std::string name;
  int64_t T, S;
  std::vector<Block> blocks;
  bool sees_itself_alone = false;
};

// Of some hundred tokens, so that there are several tiles of 64 and of 128 and rests of both.
std::vector<Case> cases() {
  std::vector<Block> singles;
  for (int64_t i = 0; i < 200; ++i) singles.push_back({i, 1, i, 1, true});
  return {
      {"one document", 333, 333, {{0, 333, 0, 333, true}}},
      {"full", 200, 333, {{0, 200, 0, 333, false}}},
      {"documents of one token", 200, 200, singles, true},
      {"documents",
       400,
       400,
       {{0, 1, 0, 1, true}, {1, 130, 1, 130, true}, {131, 269, 131, 269, true}}},
      {"fewer queries than keys", 150, 400, {{0, 150, 0, 400, true, 250}}},
      {"an offset that ends before the keys", 150, 400, {{0, 150, 0, 400, true, 20}}},
      {"queries without a block", 300, 300, {{140, 160, 0, 300, false}}},
      {"a fork",
       300,
       300,
       {{0, 200, 0, 200, true}, {200, 100, 0, 90, false}, {200, 100, 200, 100, true}}},
      {"a window", 400, 400, {{0, 400, 0, 400, true, 0, -99}}},
      {"a window over two blocks",
       400,
       400,
       {{0, 200, 0, 200, true, 0, -99},
        {200, 99, 101, 99, false, 0, 1},
        {200, 200, 200, 200, true, 0, -99}}},
  };
}

struct Shape {
  int64_t N, M, key_dim, value_dim;
  double softcap = 0;
};

void check(at::ScalarType dtype, const Shape& shape, const Case& one, double tolerance) {
  CAPTURE(fmt::format("{}: {}, heads {}/{} of {} and {}", c10::toString(dtype), one.name, shape.N,
                      shape.M, shape.key_dim, shape.value_dim));
  AttentionSpec spec = plain_attention(shape.N, shape.M, shape.key_dim);
  spec.value_dim = shape.value_dim;
  if (shape.softcap > 0) spec.softcap = shape.softcap;
  const auto random = [&](int64_t tokens, int64_t heads, int64_t numbers) {
    return at::randn({tokens, heads, numbers}, at::kDouble).to(dtype);
  };
  const at::Tensor q = random(one.T, shape.N, shape.key_dim),
                   k = random(one.S, shape.M, shape.key_dim),
                   v = random(one.S, shape.M, shape.value_dim),
                   dout = random(one.T, shape.N, shape.value_dim);
  const auto exact = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const auto on_gpu = [](const at::Tensor& x) { return x.to(at::kCUDA); };
  const BlockKernel &gpu = cuda_block_kernel(), &cpu = cpu_block_kernel();
  const AttentionResult expected = cpu.forward(exact(q), exact(k), exact(v), spec, one.blocks);
  const AttentionResult result = gpu.forward(on_gpu(q), on_gpu(k), on_gpu(v), spec, one.blocks);
  CHECK((result.out_TNH.scalar_type() == dtype));
  CHECK(relative_error(result.out_TNH.cpu(), expected.out_TNH) < tolerance);
  const at::Tensor lse = result.lse_NT.cpu(), finite = expected.lse_NT.isfinite();
  CHECK(lse.isfinite().equal(finite));
  // Scores are summed in fp32 or better.
  const double of_scores = dtype == at::kDouble ? tolerance : 64 * 0x1p-24;
  CHECK(relative_error(lse.masked_select(finite), expected.lse_NT.masked_select(finite)) <
        of_scores);

  const AttentionGradients gradients =
      gpu.backward(on_gpu(dout), on_gpu(q), on_gpu(k), on_gpu(v), result.out_TNH, result.lse_NT,
                   spec, one.blocks);
  // From the same output, so that only the backward's own roundings differ.
  const AttentionGradients wanted =
      cpu.backward(exact(dout), exact(q), exact(k), exact(v), exact(result.out_TNH.cpu()),
                   exact(lse), spec, one.blocks);
  CHECK(relative_error(gradients.dv_SMH.cpu(), wanted.dv_SMH) < tolerance);
  if (one.sees_itself_alone) {
    // A softmax of one number has no gradient: what is left is rounding, beside gradients of
    // values.
    const double scale = wanted.dv_SMH.norm().item<double>();
    CHECK(gradients.dq_TNH.to(at::kDouble).norm().item<double>() < tolerance * scale);
    CHECK(gradients.dk_SMH.to(at::kDouble).norm().item<double>() < tolerance * scale);
    return;
  }
  CHECK(relative_error(gradients.dq_TNH.cpu(), wanted.dq_TNH) < tolerance);
  CHECK(relative_error(gradients.dk_SMH.cpu(), wanted.dk_SMH) < tolerance);
}

TEST_CASE("cuda attention: beside fp64, in the numbers that models train in") {
  if (!testing::has_gpu()) return;
  // bf16: weights (or their gradients) and what is made of them are rounded, 2^-9 each at most;
  // some terms of a sum cancel. fp32: 64 roundings of 2^-24. fp64: as on the CPU.
  const std::vector<std::pair<at::ScalarType, double>> kinds{{at::kBFloat16, 4 * 0x1p-9},
                                                             {at::kHalf, 4 * 0x1p-12},
                                                             {at::kFloat, 64 * 0x1p-24},
                                                             {at::kDouble, 1e-12}};
  for (const auto& [dtype, tolerance] : kinds) {
    for (const Case& one : cases()) {
      for (const Shape& shape : {Shape{6, 2, 64, 64},
                                 {4, 4, 128, 128},
                                 {5, 1, 96, 64},
                                 {4, 2, 256, 256},
                                 {2, 1, 40, 24, 2.5}}) {
        check(dtype, shape, one, tolerance);
      }
    }
  }
}

TEST_CASE("cuda attention: cuDNN's of long blocks, where the same bits are not asked for") {
  if (!testing::has_gpu(/*deterministic=*/false)) return;
  const std::vector<Case> long_blocks{
      {"one document, filled up", 2500, 2500, {{0, 2500, 0, 2500, true}}},
      {"two of them, and queries without a block",
       5000,
       5000,
       {{0, 2048, 0, 2048, true}, {2100, 2900, 2100, 2900, true}}},
      {"a step of a ring", 2048, 3072, {{0, 2048, 0, 3072, false}}},
  };
  for (const Case& one : long_blocks) {
    for (const Shape& shape : {Shape{4, 2, 64, 64}, {2, 1, 128, 128}}) {
      const at::Tensor q = at::empty({one.T, shape.N, shape.key_dim},
                                     at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
      if (!cudnn::suits(q, plain_attention(shape.N, shape.M, shape.key_dim), one.blocks)) {
        MESSAGE("not run: this GPU's attention is not cuDNN's");
        return;
      }
      check(at::kBFloat16, shape, one, 4 * 0x1p-9);
    }
  }
  CHECK(!cudnn::suits(at::empty({4096, 2, 64}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16)),
                      plain_attention(2, 1, 64), {{0, 4096, 0, 4096, true, 0, -99}}));
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
    return kernel.backward(dout, q, k, v, result.out_TNH, result.lse_NT, spec, blocks);
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
