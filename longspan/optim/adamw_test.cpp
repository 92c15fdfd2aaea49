#include "longspan/optim/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>

#include <cmath>

#include "doctest/doctest.h"
#include "longspan/optim/gradient_norm.h"
#include "longspan/testing/parameter_specs.h"

namespace longspan {
namespace {

NamedTensor parameter(const std::string& name, int64_t size, at::ScalarType dtype = at::kDouble) {
  at::Tensor values = at::linspace(-1.0, 2.0, size, at::TensorOptions().dtype(dtype));
  return {name, values.set_requires_grad(true)};
}

at::Tensor gradient_at(const at::Tensor& values, int step) {
  return at::sin(values.detach() * 3.0 + static_cast<double>(step));
}

}  // namespace

TEST_CASE("adamw: equals the paper's formula in fp64, decayed and not") {
  const AdamWOptions options{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.3};
  const std::vector<NamedTensor> parameters = {parameter("model.layers.0.mlp.up_proj.weight", 7),
                                               parameter("model.norm.weight", 5)};
  std::vector<std::vector<double>> x, m, v;
  for (const NamedTensor& p : parameters) {
    const double* data = p.tensor.data_ptr<double>();
    x.emplace_back(data, data + p.tensor.numel());
    m.emplace_back(p.tensor.numel(), 0.0);
    v.emplace_back(p.tensor.numel(), 0.0);
  }
  ParameterTable specs = testing::projections(parameters);
  specs.add(parameter_spec("model.norm.weight", {5}, ParameterRole::kNorm, kAlwaysThere));
  AdamW optimizer(unsharded_parameters(parameters, specs), options);
  for (int step = 1; step <= 5; ++step) {
    const double rate = 0.1 / step;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = gradient_at(parameters[i].tensor, step);
      at::Tensor tensor = parameters[i].tensor;
      tensor.mutable_grad() = gradient;
      const double decay = i == 0 ? options.weight_decay : 0.0;
      for (size_t j = 0; j < x[i].size(); ++j) {
        const double g = gradient.data_ptr<double>()[j];
        x[i][j] -= rate * decay * x[i][j];
        m[i][j] = options.beta1 * m[i][j] + (1 - options.beta1) * g;
        v[i][j] = options.beta2 * v[i][j] + (1 - options.beta2) * g * g;
        const double m_hat = m[i][j] / (1 - std::pow(options.beta1, step));
        const double v_hat = v[i][j] / (1 - std::pow(options.beta2, step));
        x[i][j] -= rate * m_hat / (std::sqrt(v_hat) + options.epsilon);
      }
    }
    optimizer.step(rate);
    optimizer.zero_grad();
    CHECK_FALSE(parameters[0].tensor.grad().defined());
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (size_t j = 0; j < x[i].size(); ++j) {
      // A few fp64 roundings per step.
      CHECK(parameters[i].tensor.data_ptr<double>()[j] == doctest::Approx(x[i][j]).epsilon(1e-13));
    }
  }
}

TEST_CASE("adamw: bf16 parameters keep bf16 state and move") {
  const std::vector<NamedTensor> parameters = {parameter("lm_head.weight", 64, at::kBFloat16)};
  const at::Tensor before = parameters[0].tensor.detach().clone();
  AdamW optimizer(unsharded_parameters(parameters, testing::projections(parameters)), {});
  at::Tensor tensor = parameters[0].tensor;
  tensor.mutable_grad() = at::ones({64}, at::TensorOptions().dtype(at::kBFloat16));
  optimizer.step(0.5);
  // The first step moves every value by the learning rate, whatever the size of the gradient.
  const at::Tensor moved = before.to(at::kFloat) - tensor.detach().to(at::kFloat);
  CHECK((moved - 0.5).abs().max().item<float>() < 0.02);  // bf16: 8 bits of values up to 2.5
}

TEST_CASE("adamw: a parameter without a gradient stays") {
  const std::vector<NamedTensor> parameters = {parameter("a.weight", 4), parameter("b.weight", 4)};
  const at::Tensor before = parameters[1].tensor.detach().clone();
  AdamW optimizer(unsharded_parameters(parameters, testing::projections(parameters)),
                  {.weight_decay = 0.5});
  at::Tensor tensor = parameters[0].tensor;
  tensor.mutable_grad() = gradient_at(tensor, 1);
  optimizer.step(0.1);
  CHECK(parameters[1].tensor.detach().equal(before));
}

TEST_CASE("gradient norm: over all parameters, and clipping to it") {
  const std::vector<NamedTensor> parameters = {parameter("a.weight", 11), parameter("b.bias", 6),
                                               parameter("without.weight", 3)};
  double squares = 0;
  for (int i : {0, 1}) {
    at::Tensor tensor = parameters[i].tensor;
    tensor.mutable_grad() = gradient_at(tensor, i);
    for (int64_t j = 0; j < tensor.numel(); ++j) {
      squares += std::pow(tensor.grad().data_ptr<double>()[j], 2);
    }
  }
  const double norm = global_gradient_norm(parameters);
  CHECK(norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-14));
  clip_gradients(parameters, norm, 2 * norm);
  CHECK(global_gradient_norm(parameters) == norm);
  clip_gradients(parameters, norm, 0.25);
  CHECK(global_gradient_norm(parameters) == doctest::Approx(0.25 * norm / (norm + 1e-6)));
}

}  // namespace longspan
