#include "longspan/spec/model_spec.h"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>
#include <variant>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

/// Three layers, the second wider, with every bias and norm that exists.
ModelSpec small_model() {
  SelfAttentionSpec mixer;
  mixer.attention = {
      .num_heads = 4, .num_kv_heads = 2, .key_dim = 6, .value_dim = 10, .scale = 0.5};
  mixer.rotary = RotarySpec{};
  mixer.qk_norm = mixer.qkv_bias = mixer.output_bias = true;
  const LayerSpec layer{mixer, GatedMlpSpec{.intermediate_size = 40, .bias = true}};
  const LayerSpec wide{mixer, GatedMlpSpec{.intermediate_size = 56, .bias = true}};
  ModelSpec model;
  model.vocab_size = 100;
  model.hidden_size = 32;
  model.num_layers = 3;
  model.pattern = {layer, wide};
  model.initializer_range = 0.125;
  return model;
}

std::map<std::string, ParameterSpec> by_name(const ModelSpec& model) {
  std::map<std::string, ParameterSpec> parameters;
  for (const ParameterSpec& parameter : parameters_of(model)) {
    parameters[parameter.name] = parameter;
  }
  return parameters;
}

TEST_CASE("model spec: parameters by name, in the order of Hugging Face's files") {
  const ModelSpec model = small_model();
  const std::vector<ParameterSpec> parameters = parameters_of(model);
  CHECK(parameters.front().name == "model.embed_tokens.weight");
  CHECK(parameters[1].name == "model.layers.0.self_attn.q_proj.weight");
  CHECK(parameters[2].name == "model.layers.0.self_attn.q_proj.bias");
  CHECK(parameters[parameters.size() - 2].name == "model.norm.weight");
  CHECK(parameters.back().name == "lm_head.weight");
  CHECK(parameters.size() == 1 + 3 * 18 + 2);
  const auto shapes = by_name(model);
  using Shape = std::vector<int64_t>;
  const std::string layer = "model.layers.1.";
  CHECK(shapes.at(layer + "self_attn.q_proj.weight").shape == Shape{24, 32});
  CHECK(shapes.at(layer + "self_attn.k_proj.weight").shape == Shape{12, 32});
  CHECK(shapes.at(layer + "self_attn.v_proj.weight").shape == Shape{20, 32});
  CHECK(shapes.at(layer + "self_attn.o_proj.weight").shape == Shape{32, 40});
  CHECK(shapes.at(layer + "self_attn.q_norm.weight").shape == Shape{6});
  CHECK(shapes.at(layer + "mlp.down_proj.weight").shape == Shape{32, 56});
  CHECK(shapes.at("model.layers.2.mlp.down_proj.weight").shape == Shape{32, 40});
}

TEST_CASE("model spec: weight decay, as transformers has it") {
  for (const auto& [name, parameter] : by_name(small_model())) {
    const bool is_matrix = parameter.shape.size() == 2;
    CHECK_MESSAGE(parameter.decays == is_matrix, name);
  }
  const std::vector<ParameterSpec> head = value_head_parameters(32);
  CHECK(head[0].decays);
  CHECK_FALSE(head[1].decays);
}

TEST_CASE("model spec: what is used together, and in which dtype") {
  ModelSpec model = small_model();
  auto parameters = by_name(model);
  CHECK(parameters.at("model.embed_tokens.weight").unit == kEmbeddingUnit);
  CHECK(parameters.at("model.layers.2.input_layernorm.weight").unit == 3);
  CHECK(parameters.at("model.layers.2.input_layernorm.weight").layer == 2);
  CHECK(parameters.at("model.norm.weight").unit == kAlwaysThere);
  CHECK(parameters.at("lm_head.weight").unit == 4);
  CHECK(model.is_head(ParameterRole::kHead));
  CHECK_FALSE(model.is_head(ParameterRole::kEmbedding));
  for (const auto& [name, parameter] : parameters) {
    const bool is_cast =
        parameter.role == ParameterRole::kProjection || parameter.role == ParameterRole::kHead;
    CHECK_MESSAGE((parameter.use == ParameterUse::kCast) == is_cast, name);
  }
  model.tied_head = true;
  parameters = by_name(model);
  CHECK_FALSE(parameters.contains("lm_head.weight"));
  CHECK(model.head_unit() == kEmbeddingUnit);
  CHECK(model.is_head(ParameterRole::kEmbedding));
}

TEST_CASE("model spec: how parameters begin") {
  using Kind = Initialisation::Kind;
  for (const auto& [name, parameter] : by_name(small_model())) {
    const Kind kind = parameter.shape.size() == 2              ? Kind::kNormal
                      : parameter.role == ParameterRole::kNorm ? Kind::kOnes
                                                               : Kind::kZeros;
    CHECK_MESSAGE(parameter.init.kind == kind, name);
    if (kind == Kind::kNormal) CHECK(parameter.init.scale == 0.125);
  }
}

TEST_CASE("model spec: linear layers that can have an adapter, and its matrices") {
  const ModelSpec model = small_model();
  CHECK(lora_targets(model) == std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj",
                                                        "gate_proj", "up_proj", "down_proj"});
  const ParameterSpec weight = by_name(model).at("model.layers.1.mlp.up_proj.weight");
  const ParameterSpec a = lora_a_of(weight, 5), b = lora_b_of(weight, 5);
  CHECK(a.name == "model.layers.1.mlp.up_proj.lora_A.weight");
  CHECK(b.name == "model.layers.1.mlp.up_proj.lora_B.weight");
  CHECK(a.shape == std::vector<int64_t>{5, 32});
  CHECK(b.shape == std::vector<int64_t>{56, 5});
  CHECK(a.unit == weight.unit);
  CHECK(b.layer == 1);
  CHECK(a.decays);
  CHECK(a.lora_target.empty());
  CHECK(a.init == Initialisation{Initialisation::Kind::kUniform, 1 / std::sqrt(32.0)});
  CHECK(b.init == Initialisation{Initialisation::Kind::kZeros});
  CHECK(is_lora(a.role));
  CHECK(is_lora(b.role));
  CHECK_FALSE(is_lora(weight.role));
}

TEST_CASE("model spec: numbers are counted without a list, whatever the pattern of layers") {
  for (const int64_t num_layers : {1, 2, 3, 4, 7}) {
    ModelSpec model = small_model();
    model.num_layers = num_layers;
    int64_t listed = 0;
    for (const ParameterSpec& parameter : parameters_of(model)) listed += parameter.num_elements();
    CHECK(num_parameters_of(model, "it") == listed);
  }
  ModelSpec model = small_model();
  model.num_layers = int64_t{1} << 50;
  CHECK_THROWS_WITH_AS(num_parameters_of(model, "this model"), doctest::Contains("this model"),
                       UserError);
}

TEST_CASE("model spec: attentions and rotations of the layers, each once") {
  ModelSpec model = small_model();
  SelfAttentionSpec other = std::get<SelfAttentionSpec>(model.pattern[0].mixer);
  CHECK(attentions_of(model) == std::vector{std::pair{other.attention, int64_t{3}}});
  CHECK(rotary_kinds_of(model) == std::vector{RotaryKind{RotarySpec{}, 6}});
  const AttentionSpec first = other.attention;
  other.attention.scale = 0.25;
  other.rotary->theta = 500.0;
  model.pattern.push_back({other, model.pattern[0].feed_forward});
  SelfAttentionSpec unrotated;
  unrotated.attention = other.attention;
  model.pattern.push_back({unrotated, model.pattern[0].feed_forward});
  model.num_layers = 9;  // with a pattern of four
  CHECK(attentions_of(model) ==
        std::vector{std::pair{first, int64_t{5}}, std::pair{other.attention, int64_t{4}}});
  CHECK(rotary_kinds_of(model) ==
        std::vector{RotaryKind{RotarySpec{}, 6}, RotaryKind{RotarySpec{.theta = 500.0}, 6}});
}

TEST_CASE("model spec: what layers cost is what their parameters are") {
  const ModelSpec model = small_model();
  for (int64_t layer = 0; layer < 2; ++layer) {
    const LayerCost cost = cost_of(model.layer(layer), model.hidden_size);
    int64_t before = 0, after = 0, feed_forward = 0;
    for (const ParameterSpec& parameter : layer_parameters(model, layer)) {
      if (parameter.role != ParameterRole::kProjection) continue;
      int64_t& part = parameter.module == "mlp"           ? feed_forward
                      : parameter.lora_target == "o_proj" ? after
                                                          : before;
      part += parameter.num_elements();
    }
    CHECK(cost.mixer.before.numbers == before);
    CHECK(cost.mixer.after.numbers == after);
    CHECK(cost.feed_forward.matrices.numbers == feed_forward);
    CHECK(cost.mixer.projection_flops == FlopCost{2 * (before + after), 4 * (before + after)});
    CHECK(cost.feed_forward.flops == FlopCost{2 * feed_forward, 4 * feed_forward});
  }
}

TEST_CASE("model spec: operations of a pair of tokens, of chosen experts, of a recurrence") {
  // Keys of 6 elements, values of 10: q k^T and p v; dp, dv, dq, dk, and q k^T again.
  const AttentionSpec attention =
      std::get<SelfAttentionSpec>(small_model().pattern[0].mixer).attention;
  CHECK(pair_flops_of(attention) == FlopCost{2 * 6 + 2 * 10, 3 * 2 * 6 + 2 * 2 * 10});
  CHECK(cost_of(small_model().layer(0), 32).mixer.pair_flops == pair_flops_of(attention));
  // Two of eight experts, the shared expert and the router.
  MixtureOfExpertsSpec mixture;
  mixture.num_experts = 8;
  mixture.experts_per_token = 2;
  mixture.expert_size = 12;
  mixture.shared.intermediate_size = 20;
  const FeedForwardCost cost = cost_of(mixture, 32);
  CHECK(cost.flops == flops_of_matrices(2 * 3 * 12 * 32 + 3 * 20 * 32 + 8 * 32));
  CHECK(cost.flops == flops_of_matrices(cost.matrices.numbers - cost.idle_matrices + 8 * 32));
  const GatedDeltaNetSpec net{
      {.num_key_heads = 2, .num_value_heads = 4, .key_dim = 16, .value_dim = 8, .conv_width = 4}};
  const FlopCost rule = rule_flops_of(*recurrence_in(net), net.value_dim);
  CHECK(rule.forward == 2 * (3 * 16 * 8 + 2 * 64 * 8 + 64 * 16));
  CHECK(rule.backward == 3 * rule.forward);
  const int64_t convolution = 2 * 4 * net.num_channels();
  CHECK(cost_of(net, 32).recurrence_flops ==
        FlopCost{4 * rule.forward + convolution, 4 * rule.backward + 2 * convolution});
}

TEST_CASE("parameter table: a parameter that it has not is no guess") {
  const ParameterTable table(parameters_of(small_model()));
  CHECK(table.of("model.norm.weight").role == ParameterRole::kNorm);
  CHECK_THROWS_AS(table.of("norm.weight"), std::logic_error);
}

}  // namespace
}  // namespace longspan
