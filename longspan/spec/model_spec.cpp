#include "longspan/spec/model_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "longspan/input/numbers.h"

namespace longspan {
namespace {

constexpr std::string_view kLayers = "model.layers.";
constexpr const char* kHead = "lm_head.weight";

/// Lists the parameters of one layer.
class LayerList {
 public:
  LayerList(const ModelSpec& model, int64_t layer)
      : matrices_{Initialisation::Kind::kNormal, model.initializer_range}, layer_(layer) {}

  void linear(const char* module, const char* name, int64_t num_out, int64_t num_in, bool bias) {
    const std::string linear = fmt::format("{}.{}", module, name);
    add(module, linear + ".weight", {num_out, num_in}, ParameterRole::kProjection, matrices_)
        .lora_target = name;
    if (bias) add(module, linear + ".bias", {num_out}, ParameterRole::kBias, {});
  }
  void norm(const char* module, const std::string& name, int64_t size) {
    add(module, name + ".weight", {size}, ParameterRole::kNorm, {});
  }
  std::vector<ParameterSpec> take() { return std::move(parameters_); }

 private:
  ParameterSpec& add(const char* module, const std::string& name, std::vector<int64_t> shape,
                     ParameterRole role, Initialisation init) {
    parameters_.push_back(parameter_spec(fmt::format("{}{}.{}", kLayers, layer_, name),
                                         std::move(shape), role, static_cast<int>(layer_) + 1,
                                         init));
    parameters_.back().layer = layer_;
    parameters_.back().module = module;
    return parameters_.back();
  }

  Initialisation matrices_;
  int64_t layer_;
  std::vector<ParameterSpec> parameters_;
};

void list_mixer(const SelfAttentionSpec& mixer, int64_t hidden_size, LayerList& list) {
  const AttentionSpec& attention = mixer.attention;
  const int64_t query_dim = attention.num_heads * attention.key_dim;
  list.linear("self_attn", "q_proj", query_dim, hidden_size, mixer.qkv_bias);
  list.linear("self_attn", "k_proj", attention.num_kv_heads * attention.key_dim, hidden_size,
              mixer.qkv_bias);
  list.linear("self_attn", "v_proj", attention.num_kv_heads * attention.value_dim, hidden_size,
              mixer.qkv_bias);
  list.linear("self_attn", "o_proj", hidden_size, attention.num_heads * attention.value_dim,
              mixer.output_bias);
  if (!mixer.qk_norm) return;
  list.norm("self_attn", "self_attn.q_norm", attention.key_dim);
  list.norm("self_attn", "self_attn.k_norm", attention.key_dim);
}

void list_feed_forward(const MlpSpec& mlp, int64_t hidden_size, LayerList& list) {
  list.linear("mlp", "gate_proj", mlp.intermediate_size, hidden_size, mlp.bias);
  list.linear("mlp", "up_proj", mlp.intermediate_size, hidden_size, mlp.bias);
  list.linear("mlp", "down_proj", hidden_size, mlp.intermediate_size, mlp.bias);
}

std::vector<ParameterSpec> before_layers(const ModelSpec& model) {
  return {parameter_spec("model.embed_tokens.weight", {model.vocab_size, model.hidden_size},
                         ParameterRole::kEmbedding, kEmbeddingUnit,
                         {Initialisation::Kind::kNormal, model.initializer_range})};
}

std::vector<ParameterSpec> after_layers(const ModelSpec& model) {
  std::vector<ParameterSpec> parameters{
      parameter_spec("model.norm.weight", {model.hidden_size}, ParameterRole::kNorm, kAlwaysThere)};
  if (!model.tied_head) {
    parameters.push_back(parameter_spec(kHead, {model.vocab_size, model.hidden_size},
                                        ParameterRole::kHead, model.head_unit(),
                                        {Initialisation::Kind::kNormal, model.initializer_range}));
  }
  return parameters;
}

}  // namespace

std::vector<ParameterSpec> layer_parameters(const ModelSpec& model, int64_t layer) {
  LayerList list(model, layer);
  const LayerSpec& spec = model.layer(layer);
  list_mixer(spec.mixer, model.hidden_size, list);
  list_feed_forward(spec.feed_forward, model.hidden_size, list);
  list.norm("input_layernorm", "input_layernorm", model.hidden_size);
  list.norm("post_attention_layernorm", "post_attention_layernorm", model.hidden_size);
  return list.take();
}

std::vector<ParameterSpec> parameters_of(const ModelSpec& model) {
  std::vector<ParameterSpec> parameters = before_layers(model);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (ParameterSpec& parameter : layer_parameters(model, layer)) {
      parameters.push_back(std::move(parameter));
    }
  }
  for (ParameterSpec& parameter : after_layers(model)) parameters.push_back(std::move(parameter));
  return parameters;
}

int64_t num_parameters_of(const ModelSpec& model, const std::string& what) {
  const auto product = [&](int64_t a, int64_t b) { return counted_product({a, b}, what); };
  const auto count = [&](const std::vector<ParameterSpec>& parameters) {
    int64_t total = 0;
    for (const ParameterSpec& parameter : parameters) {
      int64_t size = 1;
      for (const int64_t dim : parameter.shape) size = product(size, dim);
      total = counted_sum({total, size}, what);
    }
    return total;
  };
  int64_t total = counted_sum({count(before_layers(model)), count(after_layers(model))}, what);
  const int64_t length = std::ssize(model.pattern);
  for (int64_t i = 0; i < length; ++i) {
    const int64_t times = (model.num_layers + length - 1 - i) / length;
    total = counted_sum({total, product(times, count(layer_parameters(model, i)))}, what);
  }
  return total;
}

std::vector<std::string> lora_targets(const ModelSpec& model) {
  std::vector<std::string> targets;
  for (int64_t i = 0; i < std::ssize(model.pattern); ++i) {
    for (const ParameterSpec& parameter : layer_parameters(model, i)) {
      if (parameter.lora_target.empty()) continue;
      if (std::ranges::find(targets, parameter.lora_target) == targets.end()) {
        targets.push_back(parameter.lora_target);
      }
    }
  }
  return targets;
}

bool is_redundant_tensor(const ModelSpec& model, const std::string& stored_name) {
  return stored_name.ends_with(".rotary_emb.inv_freq") || (model.tied_head && stored_name == kHead);
}

std::optional<std::string> layer_of_tensor(const std::string& stored_name) {
  if (!stored_name.starts_with(kLayers)) return std::nullopt;
  const std::string rest = stored_name.substr(kLayers.size());
  return rest.substr(0, rest.find('.'));
}

}  // namespace longspan
