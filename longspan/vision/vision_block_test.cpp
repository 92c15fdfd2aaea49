// Blocks of vision towers: gradients of bf16 parameters over chunks of the MLP. P: patches, D:
// width, I: width of the MLP.
#include "longspan/vision/vision_block.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>

#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using Leaves = std::map<std::string, at::Tensor>;

constexpr int64_t kWidth = 16, kChunks = 32, kChunkRows = 256;

VisionSpec wide_block(bool has_gate) {
  VisionSpec vision;
  vision.hidden_size = kWidth;
  vision.num_heads = 2;
  vision.norm = has_gate ? VisionSpec::Norm::kRmsNorm : VisionSpec::Norm::kLayerNorm;
  vision.mlp.has_gate = has_gate;
  // So wide that chunks have kChunkRows rows.
  vision.mlp.intermediate_size = has_gate ? 5632 : 8192;
  vision.mlp.activation =
      has_gate ? VisionSpec::Activation::kSilu : VisionSpec::Activation::kGeluTanh;
  return vision;
}

/// Noise around a mean that each column has of its own. All values are exact in bf16.
at::Tensor around_means(at::IntArrayRef shape, double scale) {
  return (at::randn(shape) + at::randn({shape.back()})).mul_(scale).to(at::kBFloat16);
}

/// The parameters of norm and MLP, by name.
Leaves mlp_parameters(const VisionSpec& vision) {
  const int64_t I = vision.mlp.intermediate_size;
  Leaves leaves{{"norm weight", around_means({kWidth}, 0.1).add_(1)}};
  if (!vision.mlp.has_gate) leaves["norm bias"] = around_means({kWidth}, 0.1);
  const int64_t num_layers = vision.mlp.has_gate ? 3 : 2;
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool is_last = i + 1 == num_layers;
    const int64_t out = is_last ? kWidth : I, in = is_last ? I : kWidth;
    leaves["weight " + std::to_string(i)] = around_means({out, in}, 0.2);
    leaves["bias " + std::to_string(i)] = around_means({out}, 0.2);
  }
  for (auto& [name, tensor] : leaves) tensor.requires_grad_(true);
  return leaves;
}

VisionBlockWeights block_of(const VisionSpec& vision, const Leaves& leaves) {
  const auto frozen = [](at::IntArrayRef shape) { return at::zeros(shape, at::kBFloat16); };
  VisionBlockWeights weights;
  weights.attention_norm = {vision.norm, vision.norm_eps, frozen({kWidth}), frozen({kWidth})};
  for (Linear* layer : {&weights.query, &weights.key, &weights.value, &weights.output}) {
    layer->weight = frozen({kWidth, kWidth});
    layer->bias = frozen({kWidth});
  }
  weights.mlp_norm = {vision.norm, vision.norm_eps, leaves.at("norm weight"), {}};
  if (leaves.contains("norm bias")) weights.mlp_norm.bias_D = leaves.at("norm bias");
  for (int i = 0; leaves.contains("weight " + std::to_string(i)); ++i) {
    Linear& layer = weights.mlp.emplace_back();
    layer.weight = leaves.at("weight " + std::to_string(i));
    layer.bias = leaves.at("bias " + std::to_string(i));
  }
  return weights;
}

/// Returns h + mlp(norm(h)) by ATen's differentiable operations.
at::Tensor plain_block(const VisionSpec& vision, const Leaves& leaves, const at::Tensor& h_PD) {
  const auto linear = [&](int i, const at::Tensor& x) {
    return at::linear(x, leaves.at("weight " + std::to_string(i)),
                      leaves.at("bias " + std::to_string(i)));
  };
  const at::Tensor& weight_D = leaves.at("norm weight");
  if (!vision.mlp.has_gate) {
    const at::Tensor x_PD =
        at::layer_norm(h_PD, {kWidth}, weight_D, leaves.at("norm bias"), vision.norm_eps);
    return h_PD + linear(1, at::gelu(linear(0, x_PD), "tanh"));
  }
  const at::Tensor x_PD =
      h_PD * at::rsqrt(h_PD.square().mean(1, /*keepdim=*/true) + vision.norm_eps) * weight_D;
  return h_PD + linear(2, at::silu(linear(0, x_PD)) * linear(1, x_PD));
}

TEST_CASE("vision block: bf16 gradients over many chunks are one rounding from fp64's") {
  for (const bool has_gate : {false, true}) {
    for (const bool keeps_inner : {false, true}) {
      CAPTURE(has_gate);
      CAPTURE(keeps_inner);
      at::manual_seed(3);
      const int64_t P = kChunks * kChunkRows, frame = 64;
      const VisionSpec vision = wide_block(has_gate);
      const Leaves leaves = mlp_parameters(vision);
      const at::Tensor h_PD = around_means({P, kWidth}, 1), dout_PD = around_means({P, kWidth}, 1);
      PatchLayout layout;
      for (int64_t begin = 0; begin < P; begin += frame) {
        layout.frames.push_back({begin, frame, begin, frame, /*causal=*/false});
      }
      const auto pass =
          std::make_shared<const VisionPass>(VisionPass{.vision = vision,
                                                        .compute_dtype = at::kBFloat16,
                                                        .layout = layout,
                                                        .rotary = {},
                                                        .kernel = cpu_block_kernel(),
                                                        .keeps_inner = keeps_inner,
                                                        .store = nullptr});
      const auto block = vision_block(pass, block_of(vision, leaves), /*is_full=*/true);
      block->forward(h_PD, /*saves=*/true);
      block->backward(dout_PD, /*wants_input=*/false);

      Leaves exact;
      for (const auto& [name, tensor] : leaves) {
        exact[name] = tensor.detach().to(at::kDouble).requires_grad_(true);
      }
      torch::autograd::backward({plain_block(vision, exact, h_PD.to(at::kDouble))},
                                {dout_PD.to(at::kDouble)});
      for (const auto& [name, tensor] : leaves) {
        CAPTURE(name);
        REQUIRE((tensor.grad().scalar_type() == at::kBFloat16));
        // The sum is rounded once, an element by at most 2^-8 of it. Each patch's summand has been
        // rounded some ten times before, by 0.42 * 2^-8 in the norm and independently of other
        // patches. The summands share a mean of about their size, so these roundings add a
        // sqrt(10 / P) of the sum's. Sums in bf16 are rounded once a chunk, and the roundings of
        // partial sums that grow by the same mean have the same sign.
        CHECK(testing::relative_error(tensor.grad(), exact.at(name).grad()) < 1.0 / 256);
      }
    }
  }
}

}  // namespace
}  // namespace longspan
