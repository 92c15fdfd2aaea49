#include "longspan/kernels/linear.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <vector>

#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

/// A layer of 6 outputs with a bias and an adapter, whose B is rows 2 to 7 of 9 shared rows.
Linear trained_layer(at::ScalarType dtype) {
  const auto random = [&](at::IntArrayRef shape) {
    return at::randn(shape, dtype).requires_grad_(true);
  };
  at::manual_seed(3);
  Linear layer;
  layer.weight = random({6, 5});
  layer.bias = random({6});
  layer.lora_a = random({2, 5});
  layer.lora_b = random({9, 2});
  layer.lora_scale = 0.5;
  layer.lora_b_begin = 2;
  return layer;
}

TEST_CASE("linear layer: some outputs after others are all outputs, with all gradients") {
  const at::Tensor x = at::randn({7, 5}, at::kDouble), dy = at::randn({7, 6}, at::kDouble);
  const Linear whole = trained_layer(at::kDouble), parts = trained_layer(at::kDouble);
  const at::Tensor y = whole.forward(x), dx = whole.input_gradient(dy);
  whole.add_gradients(dy, x);
  for (const bool cast : {false, true}) {
    CAPTURE(cast);
    std::vector<at::Tensor> outputs;
    at::Tensor dx_of_parts = at::zeros_like(dx);
    for (const at::Tensor& parameter : parts.parameters()) {
      if (parameter.defined()) parameter.mutable_grad() = at::Tensor();
    }
    for (const auto& [begin, count] : {std::pair{0, 4}, std::pair{4, 2}}) {
      const Linear used = cast ? parts.cast_for_uses(at::kDouble) : parts;
      // Some outputs of some outputs.
      const Linear part =
          used.for_outputs(begin / 2, 6 - begin / 2).for_outputs(begin - begin / 2, count);
      const at::Tensor own = dy.narrow(1, begin, count).contiguous();
      outputs.push_back(part.forward(x));
      part.add_input_gradient(dx_of_parts, own);
      part.add_gradients(own, x);
      CHECK(part.parameters().at(0).is_same(parts.weight));
    }
    CHECK(testing::relative_error(at::cat(outputs, 1), y) < 1e-14);
    CHECK(testing::relative_error(dx_of_parts, dx) < 1e-14);
    for (size_t i = 0; i < whole.parameters().size(); ++i) {
      CAPTURE(i);
      if (!whole.parameters()[i].defined()) continue;
      CHECK(testing::relative_error(parts.parameters()[i].grad(), whole.parameters()[i].grad()) <
            1e-14);
    }
  }
}

}  // namespace
}  // namespace longspan
