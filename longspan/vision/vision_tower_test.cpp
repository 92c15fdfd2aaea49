// Vision towers: pictures do not see each other, adapters, rows without pictures, hooks.
#include "longspan/vision/vision_tower.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <utility>

namespace longspan {
namespace {

using Grids = std::vector<PictureGrid>;

enum class Kind { kQwen3Vl, kQwen2_5Vl, kGemma3 };
using enum Kind;

VisionSpec small_tower(Kind kind) {
  VisionSpec vision;
  vision.patch_size = 2;
  vision.temporal_patch_size = 2;
  vision.merge_size = 2;
  vision.depth = 3;
  vision.hidden_size = 16;
  vision.num_heads = 2;
  vision.output_size = 12;
  vision.names = VisionSpec::names_of_qwen();
  vision.rotary_theta = 1e4;
  if (kind == kGemma3) {
    vision.temporal_patch_size = 0;
    vision.has_patch_bias = true;
    vision.position_side = 5;
    vision.rotary_theta.reset();
    vision.mlp = {.intermediate_size = 24,
                  .activation = VisionSpec::Activation::kGeluTanh,
                  .has_gate = false,
                  .names = {"fc1", "fc2"}};
    vision.names.qkv = {"q_proj", "k_proj", "v_proj"};
    vision.names.last_norm = "last";
    vision.merger = VisionSpec::MeanMerger{"norm", "matrix"};
  } else if (kind == kQwen2_5Vl) {
    vision.norm = VisionSpec::Norm::kRmsNorm;
    vision.mlp = {.intermediate_size = 24,
                  .activation = VisionSpec::Activation::kSilu,
                  .has_gate = true,
                  .names = {"gate_proj", "up_proj", "down_proj"}};
    vision.windows = VisionSpec::Windows{.side = 2, .full_blocks = {1}};
    vision.merger = VisionSpec::MlpMerger{"ln_q", "mlp.0", "mlp.2"};
  } else {
    vision.has_patch_bias = true;
    vision.position_side = 5;
    vision.mlp = {.intermediate_size = 24,
                  .activation = VisionSpec::Activation::kGeluTanh,
                  .has_gate = false,
                  .names = {"linear_fc1", "linear_fc2"}};
    vision.merger = VisionSpec::MlpMerger{"norm", "linear_fc1", "linear_fc2"};
    vision.deepstack = {0, 2};
  }
  return vision;
}

std::vector<NamedTensor> random_parameters(const VisionSpec& vision, at::ScalarType dtype) {
  std::vector<NamedTensor> parameters;
  for (const ParameterSpec& parameter : parameters_of(vision, 0)) {
    const at::Tensor values = at::randn(parameter.shape, dtype).mul_(0.3);
    if (parameter.role == ParameterRole::kNorm) values.add_(1);
    parameters.push_back({parameter.name, values});
  }
  return parameters;
}

void set_trained(const std::vector<NamedTensor>& parameters, bool trained) {
  for (const NamedTensor& parameter : parameters) {
    parameter.tensor.mutable_grad() = at::Tensor();
    parameter.tensor.requires_grad_(trained);
  }
}

int64_t num_patches(const Grids& grids) {
  int64_t total = 0;
  for (const PictureGrid& grid : grids) total += grid.num_patches();
  return total;
}

std::map<std::string, at::Tensor> gradients_of(const std::vector<NamedTensor>& parameters) {
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, tensor] : parameters) {
    REQUIRE_MESSAGE(tensor.grad().defined(), name);
    gradients[name] = tensor.grad().clone();
  }
  return gradients;
}

TEST_CASE("vision tower: each frame gets the features that it gets alone") {
  for (const Kind kind : {kQwen3Vl, kQwen2_5Vl, kGemma3}) {
    CAPTURE(static_cast<int>(kind));
    at::manual_seed(4);
    const VisionSpec vision = small_tower(kind);
    const auto parameters = random_parameters(vision, at::kDouble);
    VisionTower tower(vision, parameters, {});
    const Grids grids{{1, 4, 6}, {2, 8, 6}, {1, 2, 2}, {1, 4, 6}};
    const at::Tensor patches_PX = at::randn({num_patches(grids), vision.patch_dim()});
    const at::Tensor all_FE = tower.features(patches_PX, grids);
    CHECK(all_FE.sizes() == at::IntArrayRef{num_patches(grids) / 4, vision.feature_dim()});
    int64_t begin = 0;
    for (const PictureGrid& grid : grids) {
      for (int64_t t = 0; t < grid.t; ++t) {
        const int64_t size = grid.h * grid.w;
        const Grids frame{{1, grid.h, grid.w}};
        const at::Tensor alone_FE = tower.features(patches_PX.narrow(0, begin, size), frame);
        CHECK(at::allclose(all_FE.narrow(0, begin / 4, size / 4), alone_FE, 1e-10, 1e-12));
        begin += size;
      }
    }
    CHECK_FALSE(all_FE.requires_grad());
  }
}

TEST_CASE("vision tower: pixels in parts give the same bits, and are read again for the backward") {
  for (const Kind kind : {kQwen3Vl, kQwen2_5Vl, kGemma3}) {
    CAPTURE(static_cast<int>(kind));
    at::manual_seed(6);
    const VisionSpec vision = small_tower(kind);
    const auto parameters = random_parameters(vision, at::kDouble);
    const Grids grids{{1, 4, 6}, {2, 8, 6}, {1, 2, 2}, {1, 4, 6}};
    const at::Tensor patches_PX = at::randn({num_patches(grids), vision.patch_dim()});
    int64_t read = 0, most = 0;
    const PatchSource source = [&](size_t begin, size_t end) {
      int64_t before = 0, size = 0;
      for (size_t i = 0; i < end; ++i) (i < begin ? before : size) += grids[i].num_patches();
      read += size;
      most = std::max(most, size);
      return patches_PX.narrow(0, before, size);
    };
    const auto run = [&](int64_t patches_of_part) {
      set_trained(parameters, true);
      VisionTower tower(vision, parameters,
                        {.part_bytes = patches_of_part * vision.patch_dim() * 4});
      read = most = 0;
      const at::Tensor features_FE = tower.features(source, grids);
      torch::autograd::backward({features_FE.square().sum()}, {});
      return std::pair(features_FE.detach(), gradients_of(parameters));
    };
    const auto [whole_FE, whole] = run(1000);
    CHECK(read == num_patches(grids));
    const auto [parts_FE, parts] = run(28);  // 24, 96, 4 + 24 patches
    CHECK(read == 2 * num_patches(grids));
    CHECK(most == 96);
    CHECK(at::equal(parts_FE, whole_FE));
    for (const auto& [name, gradient] : whole) {
      CHECK_MESSAGE(at::allclose(parts.at(name), gradient, 1e-12, 1e-12), name);
    }
  }
}

TEST_CASE("vision tower: gradients with and without checkpointing are the same, to the bit") {
  for (const Kind kind : {kQwen3Vl, kQwen2_5Vl, kGemma3}) {
    CAPTURE(static_cast<int>(kind));
    at::manual_seed(5);
    const VisionSpec vision = small_tower(kind);
    const auto parameters = random_parameters(vision, at::kFloat);
    const Grids grids{{1, 4, 6}, {2, 2, 4}};
    const at::Tensor patches_PX = at::randn({num_patches(grids), vision.patch_dim()});
    std::vector<std::map<std::string, at::Tensor>> gradients;
    for (const bool checkpointing : {false, true}) {
      set_trained(parameters, true);
      VisionTower tower(vision, parameters, {.gradient_checkpointing = checkpointing});
      torch::autograd::backward({tower.features(patches_PX, grids).square().sum()}, {});
      gradients.push_back(gradients_of(parameters));
    }
    for (const auto& [name, gradient] : gradients[0]) {
      CAPTURE(name);
      CHECK(gradient.norm().item<double>() > 0);
      CHECK(at::equal(gradient, gradients[1].at(name)));
    }
  }
}

TEST_CASE("vision tower: chunks of the MLP, of patches of several frames, add up to the frames") {
  for (const Kind kind : {kQwen3Vl, kQwen2_5Vl, kGemma3}) {
    for (const bool checkpointing : {false, true}) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(checkpointing);
      at::manual_seed(8);
      VisionSpec vision = small_tower(kind);
      vision.mlp.intermediate_size = 2048;  // chunks of 256 rows
      const auto parameters = random_parameters(vision, at::kDouble);
      const VisionOptions options{.gradient_checkpointing = checkpointing};
      const Grids grids{{1, 12, 10}, {1, 20, 12}, {1, 16, 14}};
      const at::Tensor patches_PX = at::randn({num_patches(grids), vision.patch_dim()});
      const at::Tensor dy_FE =
          at::randn({num_patches(grids) / 4, vision.feature_dim()}, at::kDouble);
      VisionTower tower(vision, parameters, options);
      set_trained(parameters, true);
      torch::autograd::backward({tower.features(patches_PX, grids)}, {dy_FE});
      const auto together = gradients_of(parameters);
      set_trained(parameters, true);
      int64_t begin = 0;
      for (const PictureGrid& grid : grids) {
        const int64_t size = grid.num_patches();
        const Grids alone{grid};
        torch::autograd::backward({tower.features(patches_PX.narrow(0, begin, size), alone)},
                                  {dy_FE.narrow(0, begin / 4, size / 4)});
        begin += size;
      }
      const auto apart = gradients_of(parameters);
      for (const auto& [name, gradient] : apart) {
        CAPTURE(name);
        // A bias of unrotated keys adds the same to all scores of a query: its gradient is 0.
        const std::string scale =
            std::regex_replace(name, std::regex("k_proj.bias"), "q_proj.bias");
        CHECK((together.at(name) - gradient).norm().item<double>() <=
              1e-11 * apart.at(scale).norm().item<double>());
      }
    }
  }
}

/// Writes down the units in the order of their uses.
struct UnitRecorder : ParameterHooks {
  std::string calls;
  void before(int unit, Use use, int /*next*/) override {
    calls += (use == Use::kForward ? " f" : " b") + std::to_string(unit);
  }
  void after(int unit, Use use) override {
    calls += (use == Use::kForward ? " F" : " B") + std::to_string(unit);
  }
};

TEST_CASE("vision tower: without pictures parameters are used in the same order") {
  at::manual_seed(6);
  const VisionSpec vision = small_tower(kQwen3Vl);
  const auto parameters = random_parameters(vision, at::kFloat);
  for (const bool all_train : {true, false}) {
    CAPTURE(all_train);
    std::vector<std::string> calls;
    for (const Grids& grids : {Grids{{1, 4, 6}, {1, 2, 2}}, Grids{}}) {
      set_trained(parameters, all_train);
      if (!all_train) {  // the projector alone
        for (const auto& [name, tensor] : parameters) {
          tensor.requires_grad_(name.find("merger") != std::string::npos);
        }
      }
      UnitRecorder hooks;
      VisionTower tower(vision, parameters, {.parameter_hooks = &hooks, .first_unit = 10});
      const at::Tensor features_FE =
          tower.features(at::randn({num_patches(grids), vision.patch_dim()}), grids);
      CHECK(features_FE.size(1) == vision.feature_dim());
      torch::autograd::backward({features_FE.sum()}, {});
      calls.push_back(hooks.calls);
      for (const auto& [name, tensor] : parameters) {
        if (!tensor.requires_grad()) continue;
        CAPTURE(name);
        REQUIRE(tensor.grad().defined());
        if (grids.empty()) CHECK(tensor.grad().count_nonzero().item<int64_t>() == 0);
      }
    }
    CHECK(calls[0] == calls[1]);
    // Embedding, blocks with the mergers of deepstack behind theirs, merger.
    CHECK(calls[0].starts_with(" f10 F10 f11 F11 f15 F15 f12 F12 f13 F13 f16 F16 f14 F14 b"));
  }
}

TEST_CASE(
    "vision tower: the norm behind the blocks trains with the tower, the rest with the projector") {
  at::manual_seed(9);
  const VisionSpec vision = small_tower(kGemma3);
  const auto parameters = random_parameters(vision, at::kFloat);
  std::map<std::string, ModelPart> part_of;
  for (const ParameterSpec& parameter : parameters_of(vision, 0)) {
    part_of[parameter.name] = parameter.part;
  }
  CHECK((part_of.at("visual.last.weight") == ModelPart::kTower));
  CHECK((part_of.at("visual.last.bias") == ModelPart::kTower));
  CHECK((part_of.at("visual.merger.norm.weight") == ModelPart::kProjector));
  const Grids grids{{1, 4, 6}};
  const at::Tensor patches_PX = at::randn({num_patches(grids), vision.patch_dim()});
  for (const ModelPart trained : {ModelPart::kTower, ModelPart::kProjector}) {
    set_trained(parameters, false);
    for (const auto& [name, tensor] : parameters) {
      tensor.requires_grad_(part_of.at(name) == trained);
    }
    VisionTower tower(vision, parameters, {});
    torch::autograd::backward({tower.features(patches_PX, grids).sum()}, {});
    for (const auto& [name, tensor] : parameters) {
      CAPTURE(name);
      CHECK(tensor.grad().defined() == (part_of.at(name) == trained));
    }
  }
}

TEST_CASE("vision tower: an adapter computes what the merged matrix computes") {
  at::manual_seed(7);
  constexpr double kScale = 0.5;
  const VisionSpec vision = small_tower(kQwen2_5Vl);
  auto parameters = random_parameters(vision, at::kDouble), merged = parameters;
  const Grids grids{{1, 4, 6}};
  const at::Tensor patches_PX = at::randn({num_patches(grids), vision.patch_dim()});
  const std::string linear = "visual.blocks.1.mlp.up_proj";
  const at::Tensor a_RI = at::randn({2, 16}, at::kDouble), b_OR = at::randn({24, 2}, at::kDouble);
  for (auto& [name, tensor] : merged) {
    if (name == linear + ".weight") tensor = tensor + kScale * at::mm(b_OR, a_RI);
  }
  VisionTower plain(vision, parameters, {});
  const at::Tensor without_FE = plain.features(patches_PX, grids);
  parameters.push_back({linear + ".lora_A.weight", a_RI.requires_grad_(true)});
  parameters.push_back({linear + ".lora_B.weight", b_OR.requires_grad_(true)});
  VisionTower adapted(vision, parameters, {.lora_scale = kScale});
  VisionTower whole(vision, merged, {});
  const at::Tensor adapted_FE = adapted.features(patches_PX, grids);
  CHECK(at::allclose(adapted_FE, whole.features(patches_PX, grids), 1e-10, 1e-12));
  torch::autograd::backward({adapted_FE.sum()}, {});
  CHECK(a_RI.grad().norm().item<double>() > 0);
  CHECK(b_OR.grad().norm().item<double>() > 0);
  adapted.use_adapters(false);
  CHECK(at::equal(adapted.features(patches_PX, grids), without_FE));
}

}  // namespace
}  // namespace longspan
