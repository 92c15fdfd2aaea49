// Operations on the parameters of one unit: gradients, saved memory, order of the hooks.
#include "longspan/vision/unit_op.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Writes down its calls.
class UseRecorder : public ParameterHooks {
 public:
  std::vector<std::string> calls;

  void before(int unit, Use use, int next) override {
    calls.push_back(name("before", unit, use) + " " + std::to_string(next));
  }
  void after(int unit, Use use) override { calls.push_back(name("after", unit, use)); }

 private:
  static std::string name(const char* what, int unit, Use use) {
    return std::string(what) + " " + std::to_string(unit) +
           (use == Use::kForward ? " forward" : " backward");
  }
};

at::Tensor product(const at::Tensor& x, const Tensors& values) {
  const at::Tensor y = at::linear(x, values[0]);
  return at::tanh(values[1].defined() ? y + values[1] : y);
}

struct Case {
  at::Tensor x = at::randn({5, 4}, at::kDouble).requires_grad_(true);
  Tensors parameters{at::randn({3, 4}, at::kDouble).requires_grad_(true),
                     at::randn({3}, at::kDouble).requires_grad_(true)};
};

TEST_CASE("unit op: gradients are autograd's, and are added") {
  at::manual_seed(1);
  Case c;
  const at::Tensor dy = at::randn({5, 3}, at::kDouble);
  const Tensors expected = torch::autograd::grad({product(c.x, c.parameters)},
                                                 {c.x, c.parameters[0], c.parameters[1]}, {dy});
  c.parameters[1].mutable_grad() = at::ones({3}, at::kDouble);
  const at::Tensor y = run_unit(recomputed(product, c.parameters), c.x, {nullptr, 0, -1, -1});
  CHECK(at::equal(y, product(c.x.detach(), c.parameters)));
  torch::autograd::backward({y}, {dy});
  CHECK(at::allclose(c.x.grad(), expected[0]));
  CHECK(at::allclose(c.parameters[0].grad(), expected[1]));
  CHECK(at::allclose(c.parameters[1].grad(), expected[2] + 1));
}

TEST_CASE("unit op: frozen and undefined parameters") {
  at::manual_seed(2);
  Case c;
  c.parameters[0].requires_grad_(false);
  c.parameters[1] = at::Tensor();
  const at::Tensor y = run_unit(recomputed(product, c.parameters), c.x, {nullptr, 0, -1, -1});
  torch::autograd::backward({y.sum()}, {});
  CHECK(c.x.grad().defined());
  CHECK_FALSE(c.parameters[0].grad().defined());
  // Nothing needs a gradient: no graph.
  const at::Tensor frozen =
      run_unit(recomputed(product, c.parameters), c.x.detach(), {nullptr, 0, -1, -1});
  CHECK_FALSE(frozen.requires_grad());
}

TEST_CASE("unit op: hooks stand around each use, and the lowest unit stays open") {
  at::manual_seed(3);
  Case c;
  UseRecorder hooks;
  const auto run = [&](const at::Tensor& x) {
    hooks.calls.clear();
    const Tensors square{at::randn({4, 4}, at::kDouble).requires_grad_(true), at::Tensor()};
    const at::Tensor first = run_unit(recomputed(product, square), x, {&hooks, 7, 8, 6});
    const at::Tensor y = run_unit(recomputed(product, c.parameters), first, {&hooks, 8, -1, 7});
    torch::autograd::backward({y.sum()}, {});
    return hooks.calls;
  };
  const std::vector<std::string> forward{"before 7 forward 8", "after 7 forward",
                                         "before 8 forward -1", "after 8 forward"};
  std::vector<std::string> wanted = forward;
  for (const char* call :
       {"before 8 backward 7", "after 8 backward", "before 7 backward 6", "after 7 backward"}) {
    wanted.emplace_back(call);
  }
  CHECK(run(c.x) == wanted);
  wanted.resize(6);
  wanted.emplace_back("before 7 backward -1");
  CHECK(run(c.x.detach()) == wanted);
  const c10::NoGradGuard no_grad;
  hooks.calls.clear();
  run_unit(recomputed(product, c.parameters), c.x, {&hooks, 8, -1, 7});
  CHECK(hooks.calls == std::vector<std::string>{"before 8 forward -1", "after 8 forward"});
}

}  // namespace
}  // namespace longspan
