// Parameters of vision towers, and the linear layers that adapters are on.
#include "longspan/spec/vision_spec.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "longspan/base/user_error.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/spec/model_spec.h"

namespace longspan {
namespace {

/// A tower with every part that exists, whose gate and down projections share names with those of
/// the language model.
VisionSpec small_tower() {
  VisionSpec vision;
  vision.patch_size = 2;
  vision.temporal_patch_size = 2;
  vision.merge_size = 2;
  vision.depth = 3;
  vision.hidden_size = 16;
  vision.num_heads = 2;
  vision.output_size = 32;
  vision.has_patch_bias = true;
  vision.position_side = 5;
  vision.mlp = {.intermediate_size = 24,
                .activation = VisionSpec::Activation::kSilu,
                .has_gate = true,
                .names = {"gate_proj", "up_proj", "down_proj"}};
  vision.merger = VisionSpec::MlpMerger{"norm", "linear_fc1", "mlp.2"};
  vision.names = VisionSpec::names_of_qwen();
  vision.rotary_theta = 1e4;
  vision.deepstack = {0, 2};
  return vision;
}

ModelSpec model_with_tower() {
  SelfAttentionSpec mixer;
  mixer.attention = plain_attention(4, 2, 8);
  ModelSpec model;
  model.vocab_size = 50;
  model.hidden_size = 32;
  model.num_layers = 2;
  model.pattern = {{mixer, GatedMlpSpec{.intermediate_size = 40}}};
  model.vision = small_tower();
  return model;
}

std::map<std::string, ParameterSpec> listed_by_name(const ModelSpec& model) {
  std::map<std::string, ParameterSpec> parameters;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    CHECK(parameters.emplace(parameter.name, parameter).second);
  }
  return parameters;
}

TEST_CASE("vision spec: shapes, parts and units of the parameters") {
  const ModelSpec model = model_with_tower();
  const auto parameters = listed_by_name(model);
  const auto& of = [&](const char* name) { return parameters.at(name); };
  using Shape = std::vector<int64_t>;
  CHECK(of("visual.patch_embed.proj.weight").shape == Shape{16, 3, 2, 2, 2});
  CHECK(of("visual.pos_embed.weight").shape == Shape{25, 16});
  CHECK(of("visual.blocks.1.attn.qkv.weight").shape == Shape{48, 16});
  CHECK(of("visual.blocks.1.mlp.gate_proj.weight").shape == Shape{24, 16});
  CHECK(of("visual.blocks.1.mlp.down_proj.weight").shape == Shape{16, 24});
  CHECK(of("visual.merger.norm.bias").shape == Shape{16});
  CHECK(of("visual.merger.linear_fc1.weight").shape == Shape{64, 64});
  CHECK(of("visual.merger.mlp.2.weight").shape == Shape{32, 64});
  CHECK(of("visual.deepstack_merger_list.1.norm.weight").shape == Shape{64});
  // The head's unit is there whether or not the head is tied.
  CHECK(model.head_unit() == 3);
  CHECK(model.vision_unit() == 4);
  CHECK(of("visual.patch_embed.proj.bias").unit == 4);
  CHECK(of("visual.pos_embed.weight").unit == 4);
  CHECK(of("visual.blocks.2.norm1.weight").unit == 7);
  CHECK(of("visual.merger.mlp.2.bias").unit == 8);
  CHECK(of("visual.deepstack_merger_list.1.linear_fc1.bias").unit == 10);
  ModelSpec tied = model;
  tied.tied_head = true;
  CHECK(tied.vision_unit() == 4);
  std::map<ModelPart, int64_t> sizes;
  for (const auto& [name, parameter] : parameters) {
    sizes[parameter.part] += parameter.num_elements();
    CHECK(name.starts_with(kVisionPrefix) == (parameter.part != ModelPart::kLanguage));
    const bool projects = name.find("merger") != std::string::npos;
    CHECK(projects == (parameter.part == ModelPart::kProjector));
  }
  CHECK(num_parameters_of(model, "the model") ==
        sizes[ModelPart::kLanguage] + sizes[ModelPart::kTower] + sizes[ModelPart::kProjector]);
  ModelSpec language = model;
  language.vision.reset();
  CHECK(num_parameters_of(language, "the model") == sizes[ModelPart::kLanguage]);
  CHECK_FALSE(of("visual.blocks.0.norm1.bias").decays);
  CHECK(of("visual.blocks.0.attn.proj.weight").decays);
}

TEST_CASE("vision spec: without bias, table, bias of norms") {
  VisionSpec vision = small_tower();
  vision.has_patch_bias = false;
  vision.position_side = 0;
  vision.norm = VisionSpec::Norm::kRmsNorm;
  std::set<std::string> names;
  for (const ParameterSpec& parameter : parameters_of(vision, 0)) names.insert(parameter.name);
  CHECK_FALSE(names.contains("visual.patch_embed.proj.bias"));
  CHECK_FALSE(names.contains("visual.pos_embed.weight"));
  CHECK(names.contains("visual.blocks.0.norm1.weight"));
  CHECK_FALSE(names.contains("visual.blocks.0.norm1.bias"));
  CHECK(vision.feature_dim() == 3 * 32);
  CHECK(vision.patch_dim() == 3 * 2 * 2 * 2);
  CHECK(vision.is_full(1));
  vision.windows = VisionSpec::Windows{.side = 1, .full_blocks = {1}};
  CHECK(vision.is_full(1));
  CHECK_FALSE(vision.is_full(0));
}

TEST_CASE("vision spec: windows cost less than whole frames") {
  VisionSpec vision = small_tower();
  const double whole = frame_flops(vision, 400);
  CHECK(frame_flops(vision, 800) > 2 * whole);
  vision.windows = VisionSpec::Windows{.side = 2, .full_blocks = {}};
  CHECK(frame_flops(vision, 400) < whole);
  CHECK(frame_flops(vision, 800) == doctest::Approx(2 * frame_flops(vision, 400)));
}

TEST_CASE("vision spec: adapters are on the parts that train") {
  using enum ModelPart;
  const ModelSpec model = model_with_tower();
  using Names = std::set<std::string>;
  const Names language{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  Names with_tower = language;
  with_tower.insert({"qkv", "proj"});
  CHECK(lora_modules_from("all", model) == language);
  CHECK(lora_modules_from("all", model, {kLanguage, kTower}) == with_tower);
  // Names that only the projector has must be given; "2" is no name.
  CHECK(lora_modules_from("all", model, {kLanguage, kTower, kProjector}) == with_tower);
  CHECK(lora_modules_from("linear_fc1", model, {kProjector}) == Names{"linear_fc1"});
  CHECK_THROWS_WITH_AS(lora_modules_from("2", model, {kProjector}),
                       doctest::Contains("the model has no module 2"), UserError);
  CHECK_THROWS_WITH_AS(lora_modules_from("qkv", model), doctest::Contains("no module qkv"),
                       UserError);

  LoraShape shape{.r = 2, .dropout = 0.1, .modules = {"gate_proj", "qkv"}};
  CHECK(lora_parameters_of(model, shape).size() == 2 * 2);
  CHECK_NOTHROW(require_in_peft(model, shape));
  std::vector<std::string> excluded = excluded_linears(model, shape);
  std::ranges::sort(excluded);
  CHECK(excluded ==
        std::vector<std::string>{"visual.blocks.0.attn.qkv", "visual.blocks.0.mlp.gate_proj",
                                 "visual.blocks.1.attn.qkv", "visual.blocks.1.mlp.gate_proj",
                                 "visual.blocks.2.attn.qkv", "visual.blocks.2.mlp.gate_proj"});
  shape.parts = {kLanguage, kTower};
  CHECK(excluded_linears(model, shape).empty());
  // PEFT adapts convolutions of that name too.
  CHECK(excluded_linears(model, {.modules = {"proj"}, .parts = {kTower}}) ==
        std::vector<std::string>{"visual.patch_embed.proj"});
  const std::vector<ParameterSpec> matrices = lora_parameters_of(model, shape);
  CHECK(matrices.size() == 2 * (2 + 3 * 2));
  const auto of_tower =
      std::ranges::find(matrices, "visual.blocks.1.attn.qkv.lora_B.weight", &ParameterSpec::name);
  REQUIRE(of_tower != matrices.end());
  CHECK(of_tower->shape == std::vector<int64_t>{48, 2});
  CHECK((of_tower->part == kTower));
  CHECK(of_tower->unit == 6);
  CHECK_THROWS_WITH_AS(require_in_peft(model, shape), doctest::Contains("lora_dropout"), UserError);
  ModelSpec texts = model;
  texts.vision.reset();
  CHECK(excluded_linears(texts, {.modules = {"gate_proj"}}).empty());
}

}  // namespace
}  // namespace longspan
