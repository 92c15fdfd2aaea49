// AdamW with moments in 8 bits, updated by a GPU kernel, has the bits of the code for CPUs.
#include "longspan/optim/cuda_adamw_8bit.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "longspan/optim/adamw_8bit_device.h"
#include "longspan/optim/block_quantization.h"
#include "longspan/testing/gpu_check.h"
#include "longspan/testing/planted_waits.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::on_gpu;
using testing::room;

/// A parameter, its gradient and its moments, on the CPU.
struct State {
  at::Tensor gradient, values;
  Moments8bit moments;

  std::vector<at::Tensor> written() const {
    return {values, moments.first_codes, moments.first_scales, moments.second_codes,
            moments.second_scales};
  }
};

/// Elements of many orders of magnitude, a block of zeros, pairs of opposite sign that tie for the
/// scale of their block, and scales of denormals.
State state_of(int64_t size, at::ScalarType dtype) {
  const int64_t num_blocks = (size + kQuantizationBlock - 1) / kQuantizationBlock;
  const auto numbers = [&](int64_t n) { return at::randn({n}, at::kFloat); };
  State state{(numbers(size) * numbers(size).mul(6).exp() * 1e-3).to(dtype),
              numbers(size).to(dtype),
              {at::empty({size}, at::kByte), at::empty({num_blocks}, at::kFloat),
               at::empty({size}, at::kByte), at::empty({num_blocks}, at::kFloat)}};
  at::Tensor first = numbers(size) * numbers(size).mul(3).exp() * 1e-3;
  at::Tensor second = first.square() * numbers(size).exp();
  const auto of_block = [&](const at::Tensor& x, int64_t block) {
    const int64_t begin = block * kQuantizationBlock;
    return x.narrow(0, begin, std::min(kQuantizationBlock, size - begin));
  };
  if (num_blocks > 1) {
    for (const at::Tensor& x : {first, second, state.gradient}) of_block(x, 1).zero_();
  }
  if (num_blocks > 2) {
    of_block(state.gradient, 2).copy_(at::where(of_block(first, 2) > 0, 0.5, -0.5));
    of_block(first, 2).zero_();
  }
  if (num_blocks > 3) {
    for (const at::Tensor& x : {first, second, state.gradient}) of_block(x, 3).mul_(1e-38);
  }
  Moments8bit& moments = state.moments;
  quantize_moment(first, /*is_signed=*/true, moments.first_codes, moments.first_scales);
  quantize_moment(second, /*is_signed=*/false, moments.second_codes, moments.second_scales);
  return state;
}

/// The state on the device; codes, values and gradient begin at odd addresses, or not.
State sent(const State& state, bool is_aligned) {
  const auto copy = [&](const at::Tensor& x) {
    return room(x.sizes(), x.scalar_type(), is_aligned).copy_(x);
  };
  const auto codes = [&](const at::Tensor& x) {
    const int64_t offset = is_aligned ? 0 : 1;
    return at::empty({x.numel() + offset}, on_gpu(at::kByte)).narrow(0, offset, x.numel()).copy_(x);
  };
  return {copy(state.gradient),
          copy(state.values),
          {codes(state.moments.first_codes), copy(state.moments.first_scales),
           codes(state.moments.second_codes), copy(state.moments.second_scales)}};
}

bool same_bits(const State& there, const State& here) {
  const auto bytes = [](const at::Tensor& x) {
    return x.cpu().contiguous().view({-1}).view(at::kByte);
  };
  const std::vector<at::Tensor> a = there.written(), b = here.written();
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(bytes(a[i]).equal(bytes(b[i])));
    if (!bytes(a[i]).equal(bytes(b[i]))) return false;
  }
  return true;
}

Factors8bit factors_of(int step) {
  const double rate = 0.01, beta1 = 0.9, beta2 = 0.999;
  return {static_cast<float>(beta1),
          static_cast<float>(beta2),
          1e-8f,
          static_cast<float>(1 - rate * 0.1),
          static_cast<float>(rate / (1 - std::pow(beta1, step))),
          static_cast<float>(std::sqrt(1 - std::pow(beta2, step)))};
}

}  // namespace

TEST_CASE("cuda adamw 8bit: the bits of the code for CPUs") {
  const AnyKernels kernels;
  at::manual_seed(3);
  // The last size is of more blocks than the warps of an emulated launch.
  for (const int64_t size :
       {int64_t{1}, int64_t{255}, int64_t{256}, int64_t{1500}, int64_t{33100}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (const bool is_aligned : {true, false}) {
        CAPTURE(size);
        CAPTURE(dtype);
        CAPTURE(is_aligned);
        const State here = state_of(size, dtype), there = sent(here, is_aligned);
        for (const int step : {1, 2, 100}) {
          update_8bit_on_cpu(here.moments, here.gradient, here.values, factors_of(step));
          REQUIRE(cuda_rows::update_8bit(there.moments, there.gradient, there.values,
                                         factors_of(step)));
          REQUIRE(same_bits(there, here));
        }
      }
    }
  }
}

TEST_CASE("cuda emulation: each barrier that 8-bit AdamW leaves out is found") {
  if (cuda_available()) return;
  CHECK(testing::check_waits([](cuda::Kernels& kernels) {
          const cuda::WithKernels lent(kernels);
          at::manual_seed(6);
          const State state = state_of(600, at::kFloat);
          cuda_rows::update_8bit(state.moments, state.gradient, state.values, factors_of(2));
          return state.written();
        }) == 2);
}

TEST_CASE("cuda adamw 8bit: gradients that are no numbers have the codes of the CPU") {
  const AnyKernels kernels;
  at::manual_seed(4);
  const State here = state_of(600, at::kFloat);
  here.gradient[3].fill_(NAN);
  here.gradient[300].fill_(INFINITY);
  const State there = sent(here, /*is_aligned=*/true);
  update_8bit_on_cpu(here.moments, here.gradient, here.values, factors_of(2));
  REQUIRE(cuda_rows::update_8bit(there.moments, there.gradient, there.values, factors_of(2)));
  CHECK(there.moments.first_codes.cpu().equal(here.moments.first_codes));
  CHECK(there.moments.second_codes.cpu().equal(here.moments.second_codes));
  CHECK(there.values.cpu().isnan().equal(here.values.isnan()));
}

TEST_CASE("cuda adamw 8bit: near ATen's operators, which compute other dtypes") {
  const AnyKernels kernels;
  at::manual_seed(5);
  const State here = state_of(1500, at::kDouble), there = sent(here, /*is_aligned=*/true);
  CHECK_FALSE(cuda_rows::update_8bit(there.moments, there.gradient, there.values, factors_of(1)));
  const at::Tensor before = here.values.clone();
  update_8bit_on_cpu(here.moments, here.gradient, here.values, factors_of(1));
  update_8bit_on_gpu(there.moments, there.gradient, there.values, factors_of(1));
  // An update has a dozen roundings, and the operators fuse some of them.
  const at::Tensor moved = (here.values - before).abs();
  CHECK(((there.values.cpu() - here.values).abs() <= 12 * 0x1p-24 * (moved + before.abs()))
            .all()
            .item<bool>());
}

}  // namespace longspan
