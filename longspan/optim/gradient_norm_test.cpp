// The global norm of more elements than an fp32 sum can hold, compared to fp64.
#include "longspan/optim/gradient_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "longspan/optim/sharded_parameters.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

/// Squares of fp32 numbers are exact in fp64; each of 2e7 additions rounds by 1e-16.
constexpr double kTolerance = 1e-13;

double exact_norm(const std::vector<at::Tensor>& gradients) {
  double squares = 0.0;
  for (const at::Tensor& gradient : gradients) {
    squares += gradient.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

NamedTensor parameter_with(const at::Tensor& gradient) {
  at::Tensor values = at::empty(gradient.sizes(), gradient.options()).set_requires_grad(true);
  values.mutable_grad() = gradient;
  return {"weight", values};
}

TEST_CASE("gradient norm: 20 million numbers, in any memory order, fp32 and bf16") {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor large = at::randn({19'000'003}, at::kFloat).mul_(1e-3).to(dtype);
    const at::Tensor turned = at::randn({1000, 501}, at::kFloat).to(dtype).t();
    const at::Tensor with_holes = at::randn({1000, 501}, at::kFloat).to(dtype).narrow(1, 0, 500);
    const at::Tensor precise = at::randn({7}, at::kDouble), one = at::full({}, 3.0, dtype);
    const std::vector<at::Tensor> gradients = {large, turned, with_holes, precise, one};
    std::vector<NamedTensor> parameters;
    for (const at::Tensor& gradient : gradients) parameters.push_back(parameter_with(gradient));
    parameters.push_back({"without", at::zeros({5}).set_requires_grad(true)});
    const double norm = global_gradient_norm(parameters);
    CHECK(norm == doctest::Approx(exact_norm(gradients)).epsilon(kTolerance));
    CHECK(global_gradient_norm({parameter_with(large)}) ==
          doctest::Approx(exact_norm({large})).epsilon(kTolerance));
    const int before = at::get_num_threads();
    at::set_num_threads(before == 1 ? 2 : 1);
    CHECK(global_gradient_norm(parameters) == norm);
    at::set_num_threads(before);
  }
}

TEST_CASE("gradient norm: neither large nor small numbers leave its range") {
  const at::Tensor large = at::full({1000}, 1e30F), small = at::full({1000}, 1e-30F);
  CHECK(global_gradient_norm({parameter_with(large)}) ==
        doctest::Approx(exact_norm({large})).epsilon(kTolerance));
  CHECK(global_gradient_norm({parameter_with(small)}) ==
        doctest::Approx(exact_norm({small})).epsilon(kTolerance));
  CHECK(nonfinite_gradients({parameter_with(large)}).empty());
}

TEST_CASE("gradient norm: what is not finite is named") {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::infinity()}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      at::Tensor gradient = at::ones({100'000}, dtype);
      gradient[77'777].fill_(bad);
      NamedTensor broken = parameter_with(gradient);
      broken.name = "broken";
      CHECK(!std::isfinite(global_gradient_norm({broken})));
      CHECK(nonfinite_gradients({parameter_with(at::ones({3})), broken}) ==
            std::vector<std::string>{"broken"});
    }
  }
}

TEST_CASE("gradient norm: ranks that divide the gradients agree with one that has them all") {
  at::manual_seed(2);
  const int64_t rows = 200'000, width = 24;
  const at::Tensor gradient = at::randn({rows * width}, at::kFloat).mul_(1e-3);
  const double exact = exact_norm({gradient});
  CHECK(global_gradient_norm({parameter_with(gradient)}) ==
        doctest::Approx(exact).epsilon(kTolerance));
  const std::vector<ParameterSource> sources = {
      {parameter_spec("embedding", {rows, width}, ParameterRole::kEmbedding, kEmbeddingUnit),
       at::kFloat, true, [&] { return at::zeros({rows, width}); }}};
  for (const int stage : {1, 3}) {
    std::vector<double> norms(2);
    testing::run_ranks(2, [&](const Mesh& mesh) {
      ShardedParameters sharded(sources,
                                {.stage = stage, .shard = mesh.world, .replicas = mesh.replicas});
      for (const ParameterShard& shard : sharded.shards()) {
        at::Tensor values = shard.values;
        values.mutable_grad() =
            gradient.narrow(0, shard.begin, shard.end - shard.begin).view(values.sizes());
      }
      norms[mesh.world.rank()] = sharded.gradient_norm();
    });
    CHECK(norms[0] == doctest::Approx(exact).epsilon(kTolerance));
    CHECK(norms[1] == norms[0]);
  }
}

TEST_CASE("gradient norm: all copies of hybrid shards take the norm of the first copy") {
  // As if the second copy had summed its gradients in another order.
  const at::Tensor gradient = at::full({64}, 0.1, at::kFloat);
  const std::vector<ParameterSource> sources = {
      {parameter_spec("embedding", {8, 8}, ParameterRole::kEmbedding, kEmbeddingUnit), at::kFloat,
       true, [] { return at::zeros({8, 8}); }}};
  ParallelPlan plan;
  plan.world_size = plan.data_size = 4;
  plan.shard_size = 2;
  std::vector<double> norms(4);
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    ShardedParameters sharded(sources,
                              {.stage = 1, .shard = mesh.shard, .replicas = mesh.replicas});
    for (const ParameterShard& shard : sharded.shards()) {
      at::Tensor values = shard.values;
      values.mutable_grad() = gradient.narrow(0, shard.begin, shard.end - shard.begin)
                                  .view(values.sizes())
                                  .mul(1 + 1e-6 * static_cast<double>(mesh.replicas.rank()));
    }
    norms[mesh.world.rank()] = sharded.gradient_norm();
  });
  for (const double norm : norms) CHECK(norm == norms[0]);
  CHECK(norms[0] == doctest::Approx(std::sqrt(64 * 0.01)).epsilon(1e-7));
}

}  // namespace
}  // namespace longspan
