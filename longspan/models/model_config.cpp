#include "longspan/models/model_config.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_object.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/models/composite.h"
#include "longspan/models/family.h"
#include "longspan/models/grouped_format.h"
#include "longspan/models/layer_keys.h"
#include "longspan/models/model_place.h"
#include "longspan/models/nearest_family.h"
#include "longspan/models/parameter_count.h"
#include "longspan/models/parse_model_config.h"
#include "longspan/models/rotary_keys.h"

namespace longspan {
namespace {

const Family& find_family(const JsonObject& keys) {
  const auto model_type = keys.get<std::string>("model_type");
  if (const Family* family = family_of_type(model_type)) return *family;
  if (keys.has("text_config")) {
    keys.fail(fmt::format(
        "model_type {} has a text_config beside parts for pictures, and the language model is "
        "trained of these alone: {}. Where its text_config is one of {}, save that part by itself: "
        "docs/configuration.md (Models) has the lines for transformers",
        model_type, describe_composites(), describe_families()));
  }
  keys.fail(fmt::format("model_type {} is not supported; {} are{}", model_type, describe_families(),
                        describe_nearest_family(keys, model_type)));
}

/// Returns the keys of the language model of a composite model.
JsonObject language_part(const JsonObject& whole, const Family& family) {
  if (family.composite->may_be_flat && !whole.has("text_config")) return whole;
  JsonObject keys = whole.object("text_config");
  const auto model_type = keys.get<std::string>("model_type", family.model_type);
  if (model_type != family.model_type) {
    keys.fail(fmt::format("model_type {} is not supported beside {}; {} is", model_type,
                          family.composite->model_type, family.model_type));
  }
  const bool tied = whole.get<bool>("tie_word_embeddings", family.default_tie_word_embeddings);
  if (family.composite->head_tie == HeadTie::kOneOfBoth &&
      keys.get<bool>("tie_word_embeddings", tied) != tied) {
    keys.fail(fmt::format(
        "tie_word_embeddings is {}, and {} outside of text_config: transformers goes by one or the "
        "other. Set both to what the weights are (true: they have no lm_head.weight)",
        !tied, tied));
  }
  return keys;
}

/// Whether the embedding is also the head. `keys`: those of the language model.
bool is_tied(const Family& family, const JsonObject& whole, const JsonObject& keys) {
  constexpr const char* kKey = "tie_word_embeddings";
  const bool beside = whole.get<bool>(kKey, family.default_tie_word_embeddings);
  const bool either = family.composite && family.composite->head_tie == HeadTie::kBesideOrIn;
  return beside || (either && keys.get<bool>(kKey, false));
}

/// Returns the token whose embedding gets no gradient.
std::optional<int64_t> padding_token(const Family& family, const JsonObject& keys,
                                     int64_t vocab_size) {
  if (!keys.contains("pad_token_id") && family.default_padding_token) {
    if (*family.default_padding_token >= vocab_size) {
      keys.fail(
          fmt::format("pad_token_id is missing, and that of this family, {}, is outside of "
                      "the vocabulary of {}. Set it to the padding token, or to null",
                      *family.default_padding_token, vocab_size));
    }
    return family.default_padding_token;
  }
  if (!keys.has("pad_token_id")) return std::nullopt;
  const auto token = keys.get<int64_t>("pad_token_id");
  if (token < -vocab_size || token >= vocab_size) {
    keys.fail(
        fmt::format("pad_token_id {} is outside of the vocabulary of {}; transformers does "
                    "not load such a model. Set it to the padding token, or to null",
                    token, vocab_size));
  }
  return token < 0 ? token + vocab_size : token;
}

/// Reads all keys but the model's name. `keys`: those of the language model; `whole`: the file's.
void read_keys(const Family& family, const JsonObject& whole, const JsonObject& keys,
               ModelConfig& config) {
  // Another quantization is refused with the weights (require_plain_weights).
  config.stored = read_stored(family, whole.json(), whole.source()).value_or(StoredNumbers{});
  ModelSpec& model = config.spec;
  model.vocab_size = family.default_vocab_size
                         ? positive(keys, "vocab_size", kMostIndexed, *family.default_vocab_size)
                         : positive(keys, "vocab_size");
  model.hidden_size = positive(keys, "hidden_size");
  model.num_layers = positive(keys, "num_hidden_layers");
  if (const auto activation = keys.get<std::string>("hidden_act", "silu"); activation != "silu") {
    keys.fail(fmt::format("hidden_act {} is not supported; silu is. Take a model that has it",
                          activation));
  }
  keys.get<double>("attention_dropout", 0.0);  // ignored: training uses 0, and the run says so
  config.max_position_embeddings = positive(keys, "max_position_embeddings", kMostPositions,
                                            family.default_max_position_embeddings);
  model.norm_eps = keys.get<double>("rms_norm_eps", family.default_rms_norm_eps);
  model.initializer_range = keys.get<double>("initializer_range", 0.02);
  model.tied_head = is_tied(family, whole, keys);
  model.padding_token = padding_token(family, keys, model.vocab_size);
  family.read_layers(keys, config);
  if (config.stored.four_bits() != nullptr && experts_of(model) != nullptr) {
    whole.fail(fmt::format(
        "quantization_config: {} is not read for mixtures of experts. Give the original model",
        config.stored.grouped->name));
  }
  try {
    parameter_count(model);
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
  std::string text = read_text_file(source, "model configuration");
  if (source != folder_or_file) text = with_own_quantization(folder_or_file, std::move(text));
  return parse_model_config(text, source);
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
    whole.fail(fmt::format(
        "architectures has {}, which is not supported; {} is. Take a model with that head, or "
        "set architectures to it where the files hold one",
        named->front().dump(), config.architecture));
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
