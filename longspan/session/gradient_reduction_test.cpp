#include "longspan/session/gradient_reduction.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <string>

#include "doctest/doctest.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

at::Tensor expected(int64_t size, int num_summed) {
  // Rank r contributes (r + 1) x values, for r in [0, num_summed).
  return at::arange(size, at::kDouble) * (num_summed * (num_summed + 1) / 2);
}

/// Returns specs for these parameters, each of a unit of its own.
ParameterTable specs_of(const std::vector<NamedTensor>& parameters) {
  ParameterTable specs;
  int unit = 0;
  for (const auto& [name, tensor] : parameters) {
    specs.add(parameter_spec(name, tensor.sizes().vec(), ParameterRole::kProjection, unit++));
  }
  return specs;
}

}  // namespace

TEST_CASE("gradients: summed over ranks, large and small, with and without rows") {
  constexpr int kRanks = 3;
  const std::vector<int64_t> sizes = {5, 1000, 7, 64, 3, 12};
  std::vector<bool> equal(kRanks, false);
  // With buckets of 128 bytes, some gradients share one and some are larger.
  testing::run_ranks(kRanks, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    std::vector<NamedTensor> parameters;
    for (int64_t size : sizes) {
      at::Tensor tensor = at::zeros({size}, at::kDouble).set_requires_grad(true);
      // The last rank had no rows, so it has no gradients.
      if (rank < kRanks - 1) tensor.mutable_grad() = at::arange(size, at::kDouble) * (rank + 1);
      parameters.push_back({std::to_string(size), tensor});
    }
    // Frozen parameters have no gradient and are left out.
    parameters.push_back({"frozen", at::zeros({4}, at::kDouble)});
    sum_gradients(parameters, specs_of(parameters), mesh.world, 128);
    bool all = !parameters.back().tensor.grad().defined();
    for (size_t i = 0; i < sizes.size(); ++i) {
      all = all && parameters[i].tensor.grad().equal(expected(sizes[i], kRanks - 1));
    }
    equal[rank] = all;
  });
  for (bool all : equal) CHECK(all);
}

TEST_CASE("gradients: mixed dtypes do not share a bucket; dense memory is not taken for granted") {
  std::vector<bool> right(2, false);
  testing::run_ranks(2, [&](const Mesh& mesh) {
    at::Tensor half = at::zeros({6}, at::kBFloat16).set_requires_grad(true);
    at::Tensor single = at::zeros({2, 3}, at::kFloat).set_requires_grad(true);
    half.mutable_grad() = at::full({6}, 1.5, at::kBFloat16);
    single.mutable_grad() = at::arange(6, at::kFloat).view({3, 2}).t();
    const std::vector<NamedTensor> parameters{{"half", half}, {"single", single}};
    sum_gradients(parameters, specs_of(parameters), mesh.world);
    right[mesh.world.rank()] = half.grad().equal(at::full({6}, 3.0, at::kBFloat16)) &&
                               single.grad().equal(at::arange(6, at::kFloat).view({3, 2}).t() * 2);
  });
  CHECK(right[0]);
  CHECK(right[1]);
}

TEST_CASE("gradients: sums start in the backward of the last row, and two rows are added before") {
  using enum ParameterHooks::Use;
  // Units 0 to 2; unit 1 has a second parameter, which shares a bucket with that of unit 2.
  constexpr int64_t kLarge = 100, kSmall = 4, kBytes = 8;
  std::vector<std::vector<int64_t>> summed(2);
  std::vector<bool> right(2, false);
  testing::run_ranks(2, [&](const Mesh& mesh) {
    const int rank = mesh.world.rank();
    std::vector<NamedTensor> parameters;
    ParameterTable specs;
    const auto add = [&](const char* name, int64_t size, int unit) {
      parameters.push_back({name, at::zeros({size}, at::kDouble).set_requires_grad(true)});
      specs.add(parameter_spec(name, {size}, ParameterRole::kProjection, unit));
    };
    add("zero", kLarge, 0);
    add("one", kLarge, 1);
    add("small one", kSmall, 1);
    add("small two", kSmall, 2);
    add("two", kLarge, 2);
    WholeGradientSums sums(parameters, specs, mesh.world, /*others=*/nullptr, /*bucket_bytes=*/128);
    const auto note = [&] { summed[rank].push_back(mesh.world.traffic().sum); };
    for (const bool is_last : {false, true}) {
      if (is_last) sums.begin_last_row();
      for (const int unit : {0, 1, 2}) sums.before(unit, kForward, -1);
      for (const int unit : {2, 1, 0}) {
        for (const auto& [name, tensor] : parameters) {
          if (specs.of(name).unit != unit) continue;
          at::Tensor& gradient = tensor.mutable_grad();
          const at::Tensor own = at::full(tensor.sizes(), rank + 1.0, at::kDouble);
          gradient = gradient.defined() ? gradient + own : own;
        }
        if (unit > 0) sums.after(unit, kBackward);
        note();
      }
    }
    sums.start_sums();
    note();
    sums.finish();
    note();
    right[rank] = true;
    for (const auto& [name, tensor] : parameters) {
      const bool equal = tensor.grad().equal(at::full(tensor.sizes(), 6.0, at::kDouble));
      right[rank] = right[rank] && equal;
    }
  });
  const int64_t two = kLarge * kBytes, one = two + (kLarge + 2 * kSmall) * kBytes,
                all = one + kLarge * kBytes;
  for (const int rank : {0, 1}) {
    CHECK(summed[rank] == std::vector<int64_t>{0, 0, 0, two, one, one, all, all});
    CHECK(right[rank]);
  }
}

}  // namespace longspan
