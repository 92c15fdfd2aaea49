#include "longspan/testing/kernel_check.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "longspan/testing/tolerance.h"

namespace longspan::testing {

std::vector<KernelCase> kernel_cases() {
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

void check_kernel(const BlockKernel& kernel, at::Device device, at::ScalarType dtype,
                  const KernelShape& shape, const KernelCase& one, double tolerance) {
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
  const auto there = [&](const at::Tensor& x) { return x.to(device); };
  const BlockKernel& cpu = cpu_block_kernel();
  const AttentionResult expected = cpu.forward(exact(q), exact(k), exact(v), spec, one.blocks);
  const AttentionResult result = kernel.forward(there(q), there(k), there(v), spec, one.blocks);
  CHECK((result.out_TNH.scalar_type() == dtype));
  CHECK(relative_error(result.out_TNH.cpu(), expected.out_TNH) < tolerance);
  const at::Tensor lse = result.lse_NT.cpu(), finite = expected.lse_NT.isfinite();
  CHECK(lse.isfinite().equal(finite));
  // Scores are summed in fp32 or better.
  const double of_scores = dtype == at::kDouble ? tolerance : 64 * 0x1p-24;
  CHECK(relative_error(lse.masked_select(finite), expected.lse_NT.masked_select(finite)) <
        of_scores);

  const AttentionGradients gradients = kernel.backward(
      {there(dout), there(q), there(k), there(v), result.out_TNH, result.lse_NT}, spec, one.blocks);
  // From the same output, so that only the backward's roundings differ.
  const AttentionGradients wanted = cpu.backward(
      {exact(dout), exact(q), exact(k), exact(v), exact(result.out_TNH.cpu()), exact(lse)}, spec,
      one.blocks);
  CHECK(relative_error(gradients.dv_SMH.cpu(), wanted.dv_SMH) < tolerance);
  if (one.sees_itself_alone) {
    // A softmax of one element has no gradient: only rounding remains, compared to the gradients of
    // values.
    const double scale = wanted.dv_SMH.norm().item<double>();
    CHECK(gradients.dq_TNH.to(at::kDouble).norm().item<double>() < tolerance * scale);
    CHECK(gradients.dk_SMH.to(at::kDouble).norm().item<double>() < tolerance * scale);
    return;
  }
  CHECK(relative_error(gradients.dq_TNH.cpu(), wanted.dq_TNH) < tolerance);
  CHECK(relative_error(gradients.dk_SMH.cpu(), wanted.dk_SMH) < tolerance);
}

}  // namespace longspan::testing
