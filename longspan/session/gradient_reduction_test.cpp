#include "longspan/session/gradient_reduction.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "doctest/doctest.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

at::Tensor expected(int64_t size, int num_summed) {
  // Rank r contributes (r + 1) x values, for r in [0, num_summed).
  return at::arange(size, at::kDouble) * (num_summed * (num_summed + 1) / 2);
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
      parameters.push_back({"p", tensor});
    }
    // Frozen parameters have no gradient and are left out.
    parameters.push_back({"frozen", at::zeros({4}, at::kDouble)});
    sum_gradients(parameters, mesh.world, 128);
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
    sum_gradients({{"half", half}, {"single", single}}, mesh.world);
    right[mesh.world.rank()] = half.grad().equal(at::full({6}, 3.0, at::kBFloat16)) &&
                               single.grad().equal(at::arange(6, at::kFloat).view({3, 2}).t() * 2);
  });
  CHECK(right[0]);
  CHECK(right[1]);
}

}  // namespace longspan
