#include "longspan/optim/adamw_8bit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "doctest/doctest.h"
#include "longspan/optim/block_quantization.h"
#include "longspan/testing/parameter_specs.h"

namespace longspan {
namespace {

NamedTensor parameter(const std::string& name, int64_t size, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(size);
  return {name, at::randn({size}, at::kFloat).to(dtype).set_requires_grad(true)};
}

std::vector<ParameterShard> shards_of(const std::vector<NamedTensor>& parameters) {
  return unsharded_parameters(parameters, testing::projections(parameters));
}

void set_gradient(const NamedTensor& parameter, int step) {
  at::Tensor tensor = parameter.tensor;
  // Each element has its own order of magnitude.
  at::manual_seed(1000);
  const at::Tensor magnitudes = at::randn({tensor.numel()}, at::kFloat).exp();
  at::manual_seed(1001 + step);
  tensor.mutable_grad() =
      (at::randn({tensor.numel()}, at::kFloat) * magnitudes * 1e-3).to(tensor.scalar_type());
}

void load(Optimizer& to, const Optimizer& from) {
  const std::vector<StateSource> states = from.state();
  for (size_t i = 0; i < states.size(); ++i) to.load_state(i, states[i].make());
}

}  // namespace

TEST_CASE("quantization: values are the data type of the paper") {
  for (const bool is_signed : {true, false}) {
    const auto& values = dynamic_values(is_signed);
    CHECK(std::is_sorted(values.begin(), values.end()));
    CHECK(std::adjacent_find(values.begin(), values.end()) == values.end());
    CHECK(values.back() == 1.0f);
    CHECK(std::count(values.begin(), values.end(), 0.0f) == 1);
    CHECK(std::count_if(values.begin(), values.end(), [](float x) { return x < 0; }) ==
          (is_signed ? 127 : 0));
    // Figure 2 of the paper: each exponent has twice the fractions of the one below.
    const auto between = [&](float low, float high) {
      return std::count_if(values.begin(), values.end(),
                           [&](float x) { return x > low && x < high; });
    };
    CHECK(between(0.1f, 0.9999f) == (is_signed ? 64 : 128));
    CHECK(between(0.01f, 0.1f) == (is_signed ? 32 : 64));
    CHECK(between(1e-7f, 1e-6f) == (is_signed ? 1 : 2));
  }
}

TEST_CASE("quantization: each number goes to its nearest value; a second time changes nothing") {
  at::manual_seed(5);
  for (const bool is_signed : {true, false}) {
    const auto& values = dynamic_values(is_signed);
    for (const int64_t n : {kQuantizationBlock, int64_t{1}, int64_t{77}}) {
      for (int trial = 0; trial < 50; ++trial) {
        at::Tensor x = at::randn({n}, at::kFloat) * at::randn({n}, at::kFloat).mul(4).exp();
        if (!is_signed) x = x.abs();
        const float* data = x.const_data_ptr<float>();
        std::vector<uint8_t> codes(n), again(n);
        std::vector<float> restored(n);
        float scale = 0, scale_again = 0;
        quantize_block(data, n, is_signed, codes.data(), &scale);
        restore_block(codes.data(), scale, n, is_signed, restored.data());
        CHECK(std::abs(scale) == x.abs().max().item<float>());
        for (int64_t i = 0; i < n; ++i) {
          float best = INFINITY;
          for (const float v : values) best = std::min(best, std::abs(data[i] / scale - v));
          // One rounding of the quotient and one of the midpoint.
          CHECK(std::abs(data[i] / scale - values[codes[i]]) <= best + 2e-7f);
        }
        quantize_block(restored.data(), n, is_signed, again.data(), &scale_again);
        CHECK(scale_again == scale);
        CHECK(again == codes);
      }
    }
  }
  const std::vector<float> zeros(9, 0.0f);
  std::vector<float> restored(9, 1.0f);
  std::vector<uint8_t> codes(9);
  float scale = 1;
  quantize_block(zeros.data(), 9, true, codes.data(), &scale);
  restore_block(codes.data(), scale, 9, true, restored.data());
  CHECK(restored == zeros);
}

TEST_CASE("adamw 8bit: moves as AdamW does, with a quarter of its state") {
  const std::vector<NamedTensor> ours = {parameter("a.weight", 5000), parameter("b.weight", 100)};
  const std::vector<NamedTensor> theirs = {parameter("a.weight", 5000), parameter("b.weight", 100)};
  const at::Tensor before = ours[0].tensor.detach().clone();
  const AdamWOptions options{.weight_decay = 0.1};
  int64_t num_bytes = 0;
  AdamW8bit small(shards_of(ours), options, [&](const at::Tensor& like) {
    num_bytes += static_cast<int64_t>(like.numel() * like.element_size());
    return at::empty(like.sizes(), like.options());
  });
  // Two bytes per element, two scales of four bytes per block of 256, and the small parameter in
  // fp32.
  CHECK(num_bytes == 2 * 5000 + 2 * 4 * 20 + 2 * 4 * 100);
  AdamW plain(shards_of(theirs), options);
  for (int step = 0; step < 40; ++step) {
    for (int i : {0, 1}) {
      set_gradient(ours[i], step);
      set_gradient(theirs[i], step);
    }
    small.step(0.01);
    plain.step(0.01);
  }
  CHECK(ours[1].tensor.detach().equal(theirs[1].tensor.detach()));
  const at::Tensor moved = theirs[0].tensor.detach() - before;
  const at::Tensor apart = ours[0].tensor.detach() - theirs[0].tensor.detach();
  // The nearest value is at most 0.7 % away for the largest elements of a block, and at most 14 % a
  // decade below: random errors of some percent of an update.
  CHECK(apart.norm().item<double>() < 0.1 * moved.norm().item<double>());
  CHECK(apart.norm().item<double>() > 0.0);
}

TEST_CASE("adamw 8bit: state that is saved and loaded goes on to the last bit") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<NamedTensor> one = {parameter("a.weight", 4100, dtype),
                                          parameter("b.bias", 300, dtype)};
    const std::vector<NamedTensor> two = {parameter("a.weight", 4100, dtype),
                                          parameter("b.bias", 300, dtype)};
    AdamW8bit straight(shards_of(one), {}), stopped(shards_of(two), {});
    const auto run = [](AdamW8bit& optimizer, const std::vector<NamedTensor>& parameters, int first,
                        int last) {
      for (int step = first; step < last; ++step) {
        for (const NamedTensor& p : parameters) set_gradient(p, step);
        optimizer.step(0.01);
      }
    };
    run(straight, one, 0, 10);
    run(stopped, two, 0, 5);
    AdamW8bit resumed(shards_of(two), {});
    load(resumed, stopped);
    run(resumed, two, 5, 10);
    for (int i : {0, 1}) CHECK(one[i].tensor.detach().equal(two[i].tensor.detach()));
    AdamW8bit forgetful(shards_of(two), {});
    run(forgetful, two, 5, 10);
    CHECK_FALSE(one[0].tensor.detach().equal(two[0].tensor.detach()));
  }
}

TEST_CASE("adamw: state that is saved and loaded goes on to the last bit") {
  const std::vector<NamedTensor> one = {parameter("a.weight", 41), parameter("b.bias", 30)};
  const std::vector<NamedTensor> two = {parameter("a.weight", 41), parameter("b.bias", 30)};
  AdamW straight(shards_of(one), {}), stopped(shards_of(two), {}), resumed(shards_of(two), {});
  const auto run = [](AdamW& optimizer, const std::vector<NamedTensor>& parameters, int first,
                      int last) {
    for (int step = first; step < last; ++step) {
      for (const NamedTensor& p : parameters) set_gradient(p, step);
      optimizer.step(0.01);
    }
  };
  run(straight, one, 0, 10);
  run(stopped, two, 0, 5);
  load(resumed, stopped);
  run(resumed, two, 5, 10);
  for (int i : {0, 1}) CHECK(one[i].tensor.detach().equal(two[i].tensor.detach()));
}

}  // namespace longspan
