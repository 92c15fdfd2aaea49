// The convolution's kernels beside fp64, number by number. T: tokens, J: channels, P: tokens before
// the row, W: taps.
#include "longspan/kernels/cuda_causal_conv.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <vector>

#include "longspan/kernels/causal_conv.h"
#include "longspan/testing/gpu_check.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::check_within;
using testing::kRounding;
using testing::on_gpu;
using testing::wide;

constexpr double kBf16Rounding = 0x1p-8;

TEST_CASE("cuda convolution: output and gradients, over documents and from tokens before") {
  const AnyKernels kernels;
  at::manual_seed(51);
  constexpr int64_t W = 4;
  struct Shape {
    int64_t J;
    std::vector<int64_t> lengths;
    int64_t P;
    bool is_aligned;
  };
  for (const Shape& shape : {Shape{2048, {1}, 3, true}, Shape{24, {5, 1, 2, 90}, 2, true},
                             Shape{24, {5, 1, 2, 90}, 2, false}, Shape{7, {70}, 0, true},
                             Shape{4096, {33, 7}, 1, true}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(shape.J);
      CAPTURE(dtype);
      const auto [J, lengths, P, is_aligned] = shape;
      const auto random = [&, aligned = is_aligned](at::IntArrayRef sizes) {
        return testing::random(sizes, dtype, aligned);
      };
      std::vector<uint8_t> earlier;
      for (size_t d = 0; d < lengths.size(); ++d) {
        for (int64_t t = 0; t < lengths[d]; ++t) {
          earlier.push_back(static_cast<uint8_t>(std::min(t + (d == 0 ? P : 0), W - 1)));
        }
      }
      const auto T = static_cast<int64_t>(earlier.size());
      const cuda_rows::ConvInputs in{random({T, J}), P > 0 ? random({P, J}) : at::Tensor(),
                                     testing::random({W, J}, at::kFloat, true),
                                     at::tensor(earlier, at::kByte).to(on_gpu(at::kByte).device())};
      const at::Tensor dy = random({T, J}), y = testing::room({T, J}, dtype, is_aligned),
                       dx = testing::room({T, J}, dtype, is_aligned),
                       dbefore = testing::room({P, J}, dtype, is_aligned);
      REQUIRE(cuda_rows::causal_conv(in, y));
      const at::Tensor dweight =
          cuda_rows::causal_conv_backward(in, dy, dx, P > 0 ? dbefore : at::Tensor());
      REQUIRE(dweight.defined());

      // In fp64, with the sizes of all summands.
      const auto options = wide(in.x_TJ).options();
      std::vector<at::Tensor> rows{at::zeros({W - 1 - P, J}, options)};
      if (P > 0) rows.push_back(wide(in.before_PJ));
      rows.push_back(wide(in.x_TJ));
      const at::Tensor all = at::cat(rows), w = wide(in.weight_WJ);
      at::Tensor sum = at::zeros({T, J}, options), size = sum.clone();
      const auto seen = [&](int64_t i) { return in.earlier_T.ge(W - 1 - i).unsqueeze(1); };
      for (int64_t i = 0; i < W; ++i) {
        const at::Tensor part = seen(i) * w[i] * all.narrow(0, i, T);
        sum += part;
        size += part.abs();
      }
      const double rounding = dtype == at::kFloat ? 0 : kBf16Rounding;
      const at::Tensor gate = at::sigmoid(sum), exact = sum * gate,
                       slope = gate * (1 + sum * (1 - gate));
      // The sum's distance passes a slope of at most 1.1; the gate has exp, an addition and a
      // division.
      const at::Tensor of_sum = 5 * kRounding * size;
      check_within(y, exact, 1.1 * of_sum + 8 * kRounding * exact.abs() + rounding * exact.abs());
      // The slope's own slope is at most 0.5.
      const at::Tensor dsum = wide(dy) * slope,
                       of_dsum = wide(dy).abs() *
                                 (0.5 * of_sum + 12 * kRounding * (gate + (sum * gate).abs()));
      at::Tensor dall = at::zeros_like(all), of_dall = at::zeros_like(all);
      for (int64_t i = 0; i < W; ++i) {
        const at::Tensor place = dall.narrow(0, i, T), of_place = of_dall.narrow(0, i, T);
        place.add_(seen(i) * w[i] * dsum);
        of_place.add_(seen(i) * w[i].abs() * (of_dsum + 5 * kRounding * dsum.abs()));
        const at::Tensor x = seen(i) * all.narrow(0, i, T);
        check_within(dweight[i], (x * dsum).sum(0),
                     (x.abs() * of_dsum).sum(0) +
                         static_cast<double>(T + 1) * kRounding * (x * dsum).abs().sum(0));
      }
      const auto check_rows = [&](const at::Tensor& actual, int64_t begin, int64_t count) {
        const at::Tensor part = dall.narrow(0, begin, count);
        check_within(actual, part, of_dall.narrow(0, begin, count) + rounding * part.abs());
      };
      check_rows(dx, W - 1, T);
      if (P > 0) check_rows(dbefore, W - 1 - P, P);
    }
  }
}

TEST_CASE("cuda convolution: by kernels as by operators") {
  at::manual_seed(52);
  const Packing packing = Packing::from_lengths({5, 1, 2, 19});
  const int64_t T = packing.num_tokens(), J = 40;
  const at::Tensor weight = testing::random({J + 8, 1, 4}, at::kFloat, true),
                   x = testing::random({T, J}, at::kFloat, true),
                   before = testing::random({2, J}, at::kFloat, true),
                   dy = testing::random({T, J}, at::kFloat, true);
  const auto results = [&] {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& each : {x, weight, before}) {
      leaves.push_back(each.detach().clone().requires_grad_(true));
    }
    const at::Tensor y =
        causal_conv_silu_composed(leaves[0], {leaves[1], {{0, 16}, {24, 24}}}, packing, leaves[2]);
    y.backward(dy);
    return std::vector{y.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  };
  std::vector<at::Tensor> expected;
  {
    const cuda::WithoutKernels composed;
    expected = results();
  }
  const AnyKernels kernels;
  const auto actual = results();
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(testing::relative_error(actual[i], expected[i]) < 32 * kRounding);
  }
}

}  // namespace
}  // namespace longspan
