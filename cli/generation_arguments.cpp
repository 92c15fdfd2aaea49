#include "cli/generation_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "longspan/config/names.h"
#include "longspan/config/nearest.h"
#include "longspan/config/user_error.h"
#include "longspan/data/turns.h"

namespace longspan {

namespace {

struct ArgumentKey {
  std::string name;
  std::string wanted;
  std::function<bool(const std::string&)> take;  // false: not what is wanted
};

bool to_truth(const std::string& text, bool& value) {
  if (text != "true" && text != "false" && text != "1" && text != "0") return false;
  value = text == "true" || text == "1";
  return true;
}

template <typename Number>
bool to_number(const std::string& text, Number least, Number most, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= least &&
         value <= most;
}

ArgumentKey words(const char* name, const char* wanted, std::string& value) {
  return {name, wanted, [&value](const std::string& text) {
            value = text;
            return !text.empty();
          }};
}

template <typename Target>
ArgumentKey truth(const char* name, Target& value) {
  return {name, "true or false", [&value](const std::string& text) {
            bool given = false;
            if (!to_truth(text, given)) return false;
            value = given;
            return true;
          }};
}

ArgumentKey whole(const char* name, int64_t least, std::optional<int64_t>& value) {
  return {name, fmt::format("a whole number, at least {}", least),
          [&value, least](const std::string& text) {
            return to_number<int64_t>(text, least, INT64_MAX, value.emplace());
          }};
}

ArgumentKey number(const char* name, const char* wanted, double least, double most,
                   std::optional<double>& value) {
  return {name, wanted, [&value, least, most](const std::string& text) {
            return to_number<double>(text, least, most, value.emplace());
          }};
}

std::vector<ArgumentKey> keys_for(GenerationArguments& arguments, bool writes_file,
                                  std::optional<int64_t>& seed,
                                  std::optional<int64_t>& batch_size) {
  constexpr double kSmall = 1e-6, kMost = 1e6;
  AssistantRequest& request = arguments.request;
  std::vector<ArgumentKey> keys = {
      words("model_name_or_path", "a folder", request.model_name_or_path),
      words("adapter_name_or_path", "folders with commas between", request.adapter_name_or_path),
      {"template", fmt::format("one of: {}", fmt::join(named_templates(), ", ")),
       [&](const std::string& text) {
         request.template_name = text;
         const std::vector<std::string> names = named_templates();
         return std::ranges::find(names, text) != names.end();
       }},
      {"infer_dtype", "one of: auto, fp32, bf16",
       [&](const std::string& text) {
         // LLaMA-Factory's names beside the short ones.
         request.infer_dtype = text == "float32" ? "fp32" : text == "bfloat16" ? "bf16" : text;
         const std::string& name = request.infer_dtype;
         return name == "auto" || name == "fp32" || name == "bf16";
       }},
      {"default_system", "text",
       [&](const std::string& text) {
         request.default_system = text;
         return true;
       }},
      truth("enable_thinking", request.enable_thinking),
      truth("skip_special_tokens", request.skip_special_tokens),
      truth("do_sample", request.do_sample),
      number("temperature", "a number, at least 0", 0, kMost, request.temperature),
      number("top_p", "a number above 0, at most 1", kSmall, 1, request.top_p),
      whole("top_k", 0, request.top_k),
      number("repetition_penalty", "a number above 0", kSmall, kMost, request.repetition_penalty),
      whole("max_new_tokens", 1, request.max_new_tokens),
      whole("seed", 0, seed)};
  if (writes_file) {
    keys.push_back(words("output", "a file", arguments.output));
    keys.push_back(whole("batch_size", 1, batch_size));
    keys.push_back(whole("max_samples", 1, arguments.max_samples));
  }
  return keys;
}

}  // namespace

GenerationArguments read_generation_arguments(const std::string& command,
                                              const Arguments& arguments, bool writes_file) {
  GenerationArguments read;
  std::optional<int64_t> seed, batch_size;
  const std::vector<ArgumentKey> keys = keys_for(read, writes_file, seed, batch_size);
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string word = arguments[i];
    const bool dashed = word.starts_with("--");
    if (dashed) word.erase(0, 2);
    const size_t equals = word.find('=');
    // A file's name may hold a sign of equality too: then there is no key before it.
    std::string name = word.substr(0, equals);
    const bool is_name = std::ranges::all_of(name, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c == '-');
    });
    if (!dashed && (equals == std::string::npos || !is_name)) {
      read.words.push_back(word);
      continue;
    }
    std::ranges::replace(name, '-', '_');
    const auto key = std::ranges::find(keys, name, &ArgumentKey::name);
    if (key == keys.end()) {
      std::vector<std::string> names;
      for (const ArgumentKey& known : keys) names.push_back(known.name);
      throw UserError(fmt::format("{}: there is no key {}; the nearest is {}", command, name,
                                  nearest_name(name, names)));
    }
    std::string value = "true";
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) {
      value = arguments[++i];
    }
    if (!key->take(value)) {
      throw UserError(
          fmt::format("{}: {}: \"{}\"; wanted is {}", command, name, value, key->wanted));
    }
  }
  read.seed_given = seed.has_value();
  if (seed) read.request.seed = static_cast<uint64_t>(*seed);
  if (batch_size) read.batch_size = *batch_size;
  return read;
}

std::vector<GenerationKey> generation_keys(bool writes_file) {
  GenerationArguments unused;
  std::optional<int64_t> seed, batch_size;
  std::vector<GenerationKey> keys;
  for (const ArgumentKey& key : keys_for(unused, writes_file, seed, batch_size)) {
    GenerationKey one{key.name, key.wanted, {}};
    constexpr std::string_view kOneOf = "one of: ";
    if (key.wanted == "true or false") one.values = {"true", "false"};
    if (key.wanted.starts_with(kOneOf)) one.values = split_names(key.wanted.substr(kOneOf.size()));
    keys.push_back(std::move(one));
  }
  return keys;
}

const char* const kGenerationKeysHelp =
    R"(Keys, as key=value or --key value; what is left out comes from the model's generation_config.json:
  model_name_or_path    a model's folder, or a LoRA adapter's, which knows its base model
  adapter_name_or_path  LoRA adapters to merge into it, with commas between
  template              how a conversation becomes text, by a name of `longspan train`'s [the model's
                        own chat template; without one, texts are continued]
  default_system        the system message
  enable_thinking       false: models that can think answer at once [true]
  do_sample             true: draw each token; false: take the likeliest [generation_config.json's,
                        or true where temperature, top_p or top_k are given]
  temperature           0: greedy
  top_p, top_k          among the likeliest tokens: that much probability, so many of them [1, 50]
  repetition_penalty    above 1: tokens that came before become less likely [1]
  max_new_tokens        of an answer [1024]
  skip_special_tokens   leave tokens like <|im_end|> out of the text [true]
  infer_dtype           auto: as config.json says; fp32, bf16 [auto]
)";

}  // namespace longspan
