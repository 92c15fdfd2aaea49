#include "longspan/generation/assistant.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/adapter_positions.h"
#include "longspan/checkpoint/grown_vocabulary.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/generation/assistant_pictures.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"
#include "longspan/models/composite.h"
#include "longspan/models/dtype_words.h"
#include "longspan/models/lora.h"
#include "longspan/models/own_head.h"
#include "longspan/text/end_tokens.h"
#include "longspan/text/nearest.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr const char* kGenerationConfig = "generation_config.json";

json read_object(const fs::path& path) {
  json object = read_json_file(path.string(), "configuration");
  if (!object.is_object()) throw UserError(fmt::format("{} is not a JSON object.", path.string()));
  return object;
}

struct Folders {
  std::string model;
  std::vector<std::string> adapters;
  std::string tokenizer;  // from the last of these that has one
};

Folders folders_of(const AssistantRequest& request) {
  Folders folders{request.model_name_or_path, split_names(request.adapter_name_or_path), ""};
  const fs::path given(request.model_name_or_path);
  if (given.extension() == ".yaml" || given.extension() == ".yml") {
    throw UserError(fmt::format(
        "{} is a configuration; wanted is the folder of a model, such as the output_dir in it",
        given.string()));
  }
  if (is_there(given / kAdapterConfig) && !is_there(given / "config.json")) {
    if (!folders.adapters.empty()) {
      throw UserError(
          fmt::format("{} is itself the folder of an adapter. Give its base model, and in "
                      "adapter_name_or_path all adapters with commas between.",
                      given.string()));
    }
    const json config = read_object(model_file(given.string(), kAdapterConfig));
    const auto base = config.find("base_model_name_or_path");
    folders.model = base != config.end() && base->is_string() ? base->get<std::string>() : "";
    folders.adapters = {given.string()};
    std::error_code error;
    if (!fs::is_directory(folders.model, error)) {
      throw UserError(fmt::format(
          "{}: the adapter's base model is \"{}\", and there is no such folder here. Give the base "
          "model's folder and adapter_name_or_path={}.",
          (given / kAdapterConfig).string(), folders.model, given.string()));
    }
  }
  folders.tokenizer = folders.model;
  for (const std::string& adapter : folders.adapters) {
    if (is_there(fs::path(adapter) / "tokenizer.json")) folders.tokenizer = adapter;
  }
  return folders;
}

at::ScalarType own_dtype(const json& model) {
  return dtype_named(dtype_in(model)) == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

/// Merges adapters in fp32, so that each weight is rounded once.
std::vector<NamedTensor> load_merged(const Folders& folders, const ModelConfig& config,
                                     at::ScalarType dtype) {
  std::vector<NamedTensor> parameters =
      load_grown(folders.model, config, folders.adapters.empty() ? dtype : at::kFloat);
  for (const std::string& folder : folders.adapters) {
    const Adapter adapter = load_adapter(folder, config);
    parameters.insert(parameters.end(), adapter.parameters.begin(), adapter.parameters.end());
    merge_lora(config.spec, parameters, adapter.shape.scale());
  }
  const ParameterTable specs(parameters_of(config.spec));
  for (NamedTensor& parameter : parameters) {
    parameter.tensor = parameter.tensor.to(stored_dtype(specs.of(parameter.name), dtype));
  }
  return parameters;
}

/// Returns the user's value, else generation_config.json's, else the fallback.
template <typename T>
T setting(const std::optional<T>& asked, const json& saved, const char* name, T fallback) {
  if (asked) return *asked;
  const json value = saved.value(name, json());
  if (value.is_null()) return fallback;
  const bool fits = std::is_same_v<T, bool>      ? value.is_boolean()
                    : std::is_same_v<T, int64_t> ? value.is_number_integer() && as_whole(value) >= 0
                                                 : value.is_number();
  if (!fits)
    throw UserError(
        fmt::format("{}: {} is {}", kGenerationConfig, name, shortened(value.dump(), 60)));
  return value.get<T>();
}

SamplingOptions sampling_of(const AssistantRequest& request, const json& saved) {
  SamplingOptions sampling;
  const bool asks = request.temperature.value_or(0) > 0 || request.top_p || request.top_k;
  const bool greedy = request.temperature == 0.0;
  if ((greedy || request.do_sample == false) && (asks || request.do_sample == true)) {
    throw UserError(
        "temperature, top_p, top_k and do_sample contradict each other: do_sample=false (or "
        "temperature=0) takes the likeliest token, the others draw one; keep one");
  }
  sampling.do_sample =
      !greedy && (asks || setting<bool>(request.do_sample, saved, "do_sample", false));
  sampling.temperature = setting(request.temperature, saved, "temperature", sampling.temperature);
  sampling.top_k = setting(request.top_k, saved, "top_k", sampling.top_k);
  sampling.top_p = setting(request.top_p, saved, "top_p", sampling.top_p);
  sampling.repetition_penalty =
      setting(request.repetition_penalty, saved, "repetition_penalty", sampling.repetition_penalty);
  if (sampling.do_sample && !(sampling.temperature > 0)) sampling.do_sample = false;
  if (!(sampling.repetition_penalty > 0)) sampling.repetition_penalty = 1.0;
  return sampling;
}

/// A key of generation_config.json that has no effect on answers here.
struct IdleSetting {
  const char* name;
  std::optional<json> neutral = {};  // no effect with it, null, false or 0; none: never an effect
};

const std::vector<IdleSetting>& idle_settings() {
  static const std::vector<IdleSetting> settings = {
      // Keys that load_assistant() reads.
      {"do_sample"},
      {"temperature"},
      {"top_k"},
      {"top_p"},
      {"repetition_penalty"},
      {"max_new_tokens"},
      {"eos_token_id"},
      // Keys on the file, on batches and on encoders.
      {"_from_model_config"},
      {"transformers_version"},
      {"bos_token_id"},
      {"pad_token_id"},
      {"decoder_start_token_id"},
      {"trust_remote_code"},
      // Keys on how answers are computed, cached and returned.
      {"use_cache"},
      {"cache_implementation"},
      {"cache_config"},
      {"max_cache_len"},
      {"prefill_chunk_size"},
      {"compile_config"},
      {"disable_compile"},
      {"continuous_batching_config"},
      {"low_memory"},
      {"output_attentions"},
      {"output_hidden_states"},
      {"output_scores"},
      {"output_logits"},
      {"return_dict_in_generate"},
      {"renormalize_logits"},
      // Keys on drafts, which the model itself accepts or rejects.
      {"use_mtp"},
      {"is_assistant"},
      {"num_assistant_tokens"},
      {"num_assistant_tokens_schedule"},
      {"assistant_confidence_threshold"},
      {"assistant_early_exit"},
      {"assistant_lookbehind"},
      {"target_lookbehind"},
      {"assistant_ensemble_weight"},
      {"prompt_lookup_num_tokens"},
      {"max_matching_ngram_size"},
      {"speculation_type"},
      // Keys that apply only to several beams, which num_beams asks for.
      {"early_stopping"},
      {"length_penalty"},
      {"diversity_penalty"},
      // Keys that change answers, except with one value.
      {"typical_p", 1},
      {"encoder_repetition_penalty", 1},
      {"num_beams", 1},
      {"num_beam_groups", 1},
      {"guidance_scale", 1},
      {"num_return_sequences", 1},
      {"max_length", 20},
  };
  return settings;
}

/// Returns a warning on all other keys of the file that ask for something.
std::string warning_of(const json& saved) {
  std::vector<std::string> found;
  for (const auto& [name, value] : saved.items()) {
    if (value.empty() || value == json(false) || value == json(0) || value == json("")) continue;
    const auto idle = std::ranges::find_if(
        idle_settings(), [&](const IdleSetting& setting) { return setting.name == name; });
    if (idle != idle_settings().end() && (!idle->neutral || *idle->neutral == value)) continue;
    found.push_back(fmt::format("{} {}", shortened(name, 60), shortened(value.dump(), 60)));
  }
  if (found.empty()) return "";
  return fmt::format("warning: {} also has {}: that has no effect here", kGenerationConfig,
                     fmt::join(found, ", "));
}

std::string described(const SamplingOptions& sampling) {
  std::string text = "greedy";
  if (sampling.do_sample) {
    text = fmt::format("sampled with temperature {:g}, top_p {:g}, top_k {}", sampling.temperature,
                       sampling.top_p, sampling.top_k);
  }
  if (sampling.repetition_penalty != 1.0) {
    text += fmt::format(", repetition_penalty {:g}", sampling.repetition_penalty);
  }
  return text;
}

std::unique_ptr<TurnEncoder> chat_of(const AssistantRequest& request, const Tokenizer& tokenizer) {
  if (!request.template_name.empty()) {
    return make_named_template(request.template_name, tokenizer, request.default_system,
                               {request.enable_thinking, /*last_answer_only=*/true},
                               local_time_now());
  }
  if (!tokenizer.chat_template()) {
    const bool asks = request.default_system && !request.default_system->empty();
    if (asks || !request.enable_thinking) {
      throw UserError(
          fmt::format("{} is for a chat, and the model has no chat template; name one "
                      "(template=chatml), or remove it",
                      asks ? "default_system" : "enable_thinking"));
    }
    return nullptr;
  }
  TemplateSwitches switches;
  if (!request.enable_thinking) switches.enable_thinking = false;
  return make_model_template(tokenizer, request.default_system, switches, local_time_now());
}

std::string described(int64_t num_parameters) {
  return num_parameters < 10'000'000      ? fmt::format("{:.2f} million", num_parameters * 1e-6)
         : num_parameters < 1'000'000'000 ? fmt::format("{:.0f} million", num_parameters * 1e-6)
                                          : fmt::format("{:.2f} billion", num_parameters * 1e-9);
}

/// Returns the one text of a conversation, for a model without a chat template. Throws UserError if
/// there is more: nothing would join its parts.
const std::string& text_to_continue(const Conversation& conversation, const std::string& place) {
  const std::vector<Message>& messages = conversation.messages;
  const bool has_tools = !conversation.tools.empty();
  if (messages.size() != 1 || messages[0].role != Role::kUser || has_tools) {
    throw UserError(fmt::format(
        "{}the model has no chat template and goes on with one text, and here {}; name a template "
        "(template=chatml), or give one text",
        place,
        has_tools ? "are tools"
        : messages.size() != 1
            ? fmt::format("are {} messages", messages.size())
            : fmt::format("is a message of role {}", name_of(messages[0].role))));
  }
  return messages[0].content;
}

}  // namespace

Sample Assistant::prompt(const Conversation& conversation) const {
  const std::string place = conversation.source.empty() ? "" : conversation.source + ": ";
  if (has_pictures(conversation) && !pictures) {
    throw UserError(fmt::format("{}the prompt has pictures, and {}", place, no_pictures));
  }
  Sample sample;
  // Text to continue gets the special tokens that transformers' tokenizers put before it (<s>).
  if (!chat) {
    sample.input_ids = tokenizer.encode(text_to_continue(conversation, place),
                                        /*add_special_tokens=*/true);
  } else if (!has_pictures(conversation)) {
    sample.input_ids = chat->question(conversation);
  } else {
    PlacedPictures placed;
    const Conversation prepared = pictures->rows.prepared(conversation, placed);
    std::vector<Turn> turns(1);
    turns[0].source = chat->question(prepared);
    pictures->rows.expand(turns, placed, conversation.source);
    sample.input_ids = turns[0].source;
    sample.columns[kFeatureColumn].values = at::tensor(turns[0].source_features, at::kLong);
    pictures->rows.attach(sample, placed, std::ssize(sample.input_ids), conversation.source);
  }
  const auto num_tokens = std::ssize(sample.input_ids);
  if (num_tokens == 0) throw UserError(place + "there is nothing to continue");
  if (num_tokens >= config.max_position_embeddings) {
    throw UserError(
        fmt::format("{}the prompt has {} tokens, and the model takes {} together with the answer "
                    "(max_position_embeddings of config.json)",
                    place, num_tokens, config.max_position_embeddings));
  }
  return sample;
}

std::string warning_of_generation_config(const std::string& folder) {
  const fs::path path = model_file(folder, kGenerationConfig);
  return is_there(path) ? warning_of(read_object(path)) : "";
}

Assistant load_assistant(const AssistantRequest& request) {
  const Folders folders = folders_of(request);
  Assistant assistant;
  assistant.model_folder = folders.model;
  assistant.config = with_adapted_vocabulary(
      folders.adapters, with_positions_of(folders.adapters, load_folder_config(folders.model)));
  assistant.tokenizer = Tokenizer::load(folders.tokenizer);
  const Tokenizer& tokenizer = assistant.tokenizer;
  assistant.chat = chat_of(request, tokenizer);
  if (request.takes_pictures) take_pictures(assistant, request);
  // The tower's adapters are merged even if no prompt has pictures.
  assistant.config = with_adapted_tower(folders.adapters, assistant.config);
  assistant.skip_special_tokens = request.skip_special_tokens;

  const json model = parse_json(assistant.config.json, "config.json");
  json saved = json::object();
  for (const std::string& folder : {folders.tokenizer, folders.model}) {
    const fs::path path = model_file(folder, kGenerationConfig);
    if (!is_there(path)) continue;
    saved = read_object(path);
    break;
  }
  GenerationOptions& options = assistant.options;
  options.sampling = sampling_of(request, saved);
  options.max_new_tokens =
      setting(request.max_new_tokens, saved, "max_new_tokens", options.max_new_tokens);
  options.seed = request.seed;
  assistant.warning = warning_of(saved);
  for (const std::string& more :
       {tokenizer.left_out(), describe_own_head(folders.model, assistant.config)}) {
    if (more.empty()) continue;
    assistant.warning += (assistant.warning.empty() ? "warning: " : "\nwarning: ") + more;
  }
  options.end_tokens = end_tokens_in(folders.model).all;
  options.end_tokens.insert(tokenizer.end_tokens().begin(), tokenizer.end_tokens().end());
  if (assistant.chat) {
    const std::vector<int32_t> ends = assistant.chat->turn_ends();
    options.end_tokens.insert(ends.begin(), ends.end());
  }

  const at::ScalarType dtype = request.infer_dtype.value_or(own_dtype(model));
  assistant.parameters = load_merged(folders, assistant.config, dtype);
  int64_t num_parameters = 0;
  for (const NamedTensor& parameter : assistant.parameters) {
    num_parameters += parameter.tensor.numel();
  }
  assistant.description = fmt::format(
      "{}{}: {} of {} parameters in {}; {}; rows of up to {} tokens\n"
      "{}, at most {} tokens an answer",
      folders.model,
      folders.adapters.empty()
          ? ""
          : fmt::format(" with {}", folders.adapters.size() == 1 ? folders.adapters[0]
                                                                 : request.adapter_name_or_path),
      assistant.config.architecture, described(num_parameters), short_name_of(dtype),
      !assistant.chat                 ? "no chat template: texts are continued"
      : request.template_name.empty() ? "its own chat template"
                                      : fmt::format("template {}", request.template_name),
      assistant.config.max_position_embeddings, described(options.sampling),
      options.max_new_tokens);
  return assistant;
}

}  // namespace longspan
