#include "longspan/models/model_config.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "longspan/config/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/numbers.h"
#include "longspan/models/composite.h"
#include "longspan/models/family.h"
#include "longspan/models/model_files.h"
#include "longspan/models/model_place.h"
#include "longspan/models/nearest_family.h"
#include "longspan/models/parameter_count.h"
#include "longspan/models/parse_model_config.h"

namespace longspan {
namespace {

/// Positions are counted in doubles and multiplied by factors.
constexpr int64_t kMostPositions = int64_t{1} << 40;

int64_t in_range(const JsonObject& keys, const char* name, int64_t value, int64_t most) {
  if (value <= 0) keys.fail(fmt::format("{} is {}, it must be positive", name, value));
  if (value > most) keys.fail(fmt::format("{} is {}, it must be at most {}", name, value, most));
  return value;
}

int64_t positive(const JsonObject& keys, const char* name, int64_t most = kMostIndexed) {
  return in_range(keys, name, keys.get<int64_t>(name), most);
}
int64_t positive(const JsonObject& keys, const char* name, int64_t most, int64_t fallback) {
  return in_range(keys, name, keys.get<int64_t>(name, fallback), most);
}

/// Of one object of keys. `keys`: the whole file.
RopeScaling rope_scaling_of(const JsonObject& keys, const JsonObject& rope,
                            const ModelConfig& config) {
  RopeScaling out;
  out.type = rope.get<std::string>("rope_type", rope.get<std::string>("type", "default"));
  if (out.type != "default" && out.type != "linear" && out.type != "llama3" && out.type != "yarn") {
    rope.fail(fmt::format("rope type {} is not supported; default, linear, llama3 and yarn are",
                          out.type));
  }
  if (out.type == "linear" || out.type == "llama3") out.factor = rope.get<double>("factor");
  if (out.type == "llama3" || out.type == "yarn") {
    const char* original = "original_max_position_embeddings";
    out.original_max_position_embeddings =
        keys.has(original)
            ? positive(keys, original, kMostPositions)
            : positive(rope, original, kMostPositions, config.max_position_embeddings);
  }
  if (out.type == "llama3") {
    out.low_freq_factor = rope.get<double>("low_freq_factor");
    out.high_freq_factor = rope.get<double>("high_freq_factor");
    if (!(out.low_freq_factor > 0) || !(out.high_freq_factor > out.low_freq_factor)) {
      rope.fail("0 < low_freq_factor < high_freq_factor must hold");
    }
  }
  if (out.type == "yarn") {
    out.factor =
        rope.get<double>("factor", static_cast<double>(config.max_position_embeddings) /
                                       static_cast<double>(out.original_max_position_embeddings));
    // 0 means the default here, as in transformers.
    if (const double fast = rope.get<double>("beta_fast", 0.0); fast != 0) out.beta_fast = fast;
    if (const double slow = rope.get<double>("beta_slow", 0.0); slow != 0) out.beta_slow = slow;
    out.attention_factor = rope.optional<double>("attention_factor");
    out.mscale = rope.optional<double>("mscale");
    out.truncate = rope.get<bool>("truncate", true);
  }
  // Latent attention reads it of every scaling, as transformers does.
  if (out.type != "default") out.mscale_all_dim = rope.optional<double>("mscale_all_dim");
  if (!(out.factor > 0)) rope.fail("factor must be positive");
  return out;
}

/// The rope keys of transformers 4 (rope_theta and rope_scaling) and 5 (rope_parameters); where
/// both stand rope_scaling wins, as in transformers' RotaryEmbeddingConfigMixin. Of families whose
/// layers with a window have another rotation (ModelConfig::window_rotary), rope_parameters has an
/// object for each kind of layer. What a family has set before is the default.
void read_rope(const JsonObject& keys, const Family& family, ModelConfig& config) {
  config.rope_theta = keys.get<double>("rope_theta", config.rope_theta);
  double rotated =
      keys.get<double>("partial_rotary_factor", family.default_partial_rotary_factor.value_or(1.0));
  const bool scaled = keys.has("rope_scaling") && !keys.value("rope_scaling").empty();
  const char* name = scaled ? "rope_scaling" : "rope_parameters";
  if (keys.has(name)) {
    const JsonObject given = keys.object(name);
    const bool by_kind = config.window_rotary && !scaled;
    const bool is_there = !by_kind || given.has("full_attention");
    if (is_there) {
      const JsonObject rope = by_kind ? given.object("full_attention") : given;
      config.rope = rope_scaling_of(keys, rope, config);
      config.rope_theta = rope.get<double>("rope_theta", config.rope_theta);
      rotated = rope.get<double>("partial_rotary_factor", rotated);
    }
    if (by_kind && given.has("sliding_attention")) {
      const JsonObject rope = given.object("sliding_attention");
      RotarySpec& local = *config.window_rotary;
      local.scaling = rope_scaling_of(keys, rope, config);
      local.theta = rope.get<double>("rope_theta", local.theta);
      if (rope.get<double>("partial_rotary_factor", 1.0) != 1.0) {
        rope.fail("partial_rotary_factor other than 1 is not supported in layers with a window");
      }
    }
  }
  if (config.window_rotary && !(config.window_rotary->theta > 1)) {
    keys.fail("the rotary base of layers with a window must be larger than 1");
  }
  if (!(config.rope_theta > 1)) keys.fail("rope_theta must be larger than 1");
  if (rotated == 1.0) return;
  if (!family.default_partial_rotary_factor) {
    keys.fail(fmt::format("partial_rotary_factor {}: in a model of type {} whole heads are rotated",
                          rotated, family.model_type));
  }
  if (!(rotated > 0) || !(rotated < 1)) {
    keys.fail(fmt::format("partial_rotary_factor {} is not above 0 and at most 1", rotated));
  }
  config.rotary_dim = static_cast<int64_t>(static_cast<double>(config.head_dim) * rotated);
  if (*config.rotary_dim <= 0 || *config.rotary_dim % 2 != 0) {
    keys.fail(fmt::format(
        "partial_rotary_factor {} rotates {} of a head's {} numbers; rotation needs pairs", rotated,
        *config.rotary_dim, config.head_dim));
  }
}

const Family& find_family(const JsonObject& keys) {
  const auto model_type = keys.get<std::string>("model_type");
  if (const Family* family = family_of_type(model_type)) return *family;
  if (keys.has("text_config")) {
    keys.fail(fmt::format(
        "model_type {} has a text_config beside parts for pictures, and Longspan trains models of "
        "text alone; {} are supported. Where its text part is one of them, save it with "
        "transformers: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(text_folder)",
        model_type, describe_families()));
  }
  keys.fail(fmt::format("model_type {} is not supported; {} are{}", model_type, describe_families(),
                        describe_nearest_family(keys, model_type)));
}

/// The keys of the language model of a model of texts and pictures.
JsonObject language_part(const JsonObject& whole, const Family& family) {
  JsonObject keys = whole.object("text_config");
  const auto model_type = keys.get<std::string>("model_type", family.model_type);
  if (model_type != family.model_type) {
    keys.fail(fmt::format("model_type {} is not supported beside {}; {} is", model_type,
                          family.composite->model_type, family.model_type));
  }
  const bool tied = whole.get<bool>("tie_word_embeddings", family.default_tie_word_embeddings);
  if (keys.get<bool>("tie_word_embeddings", tied) != tied) {
    keys.fail(fmt::format(
        "tie_word_embeddings is {}, and {} outside of text_config: transformers goes by one or the "
        "other. Set both to what the weights are (true: they have no lm_head.weight)",
        !tied, tied));
  }
  return keys;
}

/// All but the name of what it is. `keys`: those of the language model; `whole`: the file's.
void read_keys(const Family& family, const JsonObject& whole, const JsonObject& keys,
               ModelConfig& config) {
  config.stored_in_mxfp4 = reads_stored(family, whole.json());
  config.vocab_size = positive(keys, "vocab_size");
  config.hidden_size = positive(keys, "hidden_size");
  if (family.has_mlps) config.intermediate_size = positive(keys, "intermediate_size");
  config.num_layers = positive(keys, "num_hidden_layers");
  config.num_heads = positive(keys, "num_attention_heads");
  config.num_kv_heads =
      keys.has("num_key_value_heads") ? positive(keys, "num_key_value_heads") : config.num_heads;
  if (config.num_heads % config.num_kv_heads != 0) {
    keys.fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                          config.num_heads, config.num_kv_heads));
  }
  if (keys.has("head_dim")) {
    config.head_dim = positive(keys, "head_dim");
  } else if (config.hidden_size % config.num_heads == 0) {
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (const auto activation = keys.get<std::string>("hidden_act", "silu"); activation != "silu") {
    keys.fail(fmt::format("hidden_act {} is not supported; silu is", activation));
  }
  keys.get<double>("attention_dropout", 0.0);  // trained with 0, which the run says
  config.max_position_embeddings = positive(keys, "max_position_embeddings", kMostPositions,
                                            family.default_max_position_embeddings);
  config.rms_norm_eps = keys.get<double>("rms_norm_eps", family.default_rms_norm_eps);
  config.initializer_range = keys.get<double>("initializer_range", 0.02);
  // Of models of texts and pictures it is a key of the whole.
  config.tie_word_embeddings =
      whole.get<bool>("tie_word_embeddings", family.default_tie_word_embeddings);
  if (keys.has("pad_token_id")) {
    const auto token = keys.get<int64_t>("pad_token_id");
    if (token < -config.vocab_size || token >= config.vocab_size) {
      keys.fail(
          fmt::format("pad_token_id {} is outside of the vocabulary of {}; transformers does "
                      "not load such a model. Set it to the padding token, or to null",
                      token, config.vocab_size));
    }
    config.padding_token = token < 0 ? token + config.vocab_size : token;
  }
  family.read_own_keys(keys, config);
  if (config.head_dim == 0) {
    keys.fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                          config.hidden_size, config.num_heads));
  }
  if (config.head_dim % 2 != 0) {
    keys.fail(fmt::format("head_dim {} is odd, rotary embeddings need pairs", config.head_dim));
  }
  read_rope(keys, family, config);
  try {
    parameter_count(config);
  } catch (const UserError& error) {
    keys.fail(error.what());
  }
}

}  // namespace

ModelConfig load_model_config(const std::string& folder_or_file) {
  require_model_place(folder_or_file);
  std::error_code error;
  const std::string source = std::filesystem::is_directory(folder_or_file, error)
                                 ? model_file(folder_or_file, "config.json")
                                 : folder_or_file;
  return parse_model_config(read_text_file(source, "model configuration"), source);
}

ModelConfig parse_model_config(const std::string& text, const std::string& source) {
  ModelConfig config;
  config.json = text;
  const nlohmann::json object = parse_json(config.json, source);
  const JsonObject whole(object, source);
  const Family& family = find_family(whole);
  config.model_type = whole.get<std::string>("model_type");
  config.architecture = is_composite(config) ? family.composite->architecture : family.architecture;
  if (const auto named = object.find("architectures"); named != object.end() && named->is_array() &&
                                                       !named->empty() &&
                                                       named->front() != config.architecture) {
    whole.fail(fmt::format("architecture {} is not supported; {} is", named->front().dump(),
                           config.architecture));
  }
  const JsonObject keys = is_composite(config) ? language_part(whole, family) : whole;
  read_keys(family, whole, keys, config);
  return config;
}

ModelConfig read_model_config_as(const Family& family, const JsonObject& keys) {
  ModelConfig config;
  config.model_type = family.model_type;
  config.architecture = family.architecture;
  read_keys(family, keys, keys, config);
  return config;
}

}  // namespace longspan
