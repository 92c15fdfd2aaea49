#include "cli/generation_arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/data/turns.h"
#include "longspan/models/dtype_words.h"
#include "longspan/session/picture_files.h"
#include "longspan/text/nearest.h"

namespace longspan {

namespace {

struct ArgumentKey {
  std::string name;
  std::string wanted;
  std::string help;
  std::function<bool(const std::string&)> take;  // returns false for an invalid value
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

ArgumentKey words(const char* name, const char* wanted, std::string& value, const char* help) {
  return {name, wanted, help, [&value](const std::string& text) {
            value = text;
            return !text.empty();
          }};
}

template <typename Target>
ArgumentKey truth(const char* name, Target& value, const char* help) {
  return {name, "true or false", help, [&value](const std::string& text) {
            bool given = false;
            if (!to_truth(text, given)) return false;
            value = given;
            return true;
          }};
}

ArgumentKey whole(const char* name, int64_t least, std::optional<int64_t>& value,
                  const char* help) {
  return {name, fmt::format("a whole number, at least {}", least), help,
          [&value, least](const std::string& text) {
            return to_number<int64_t>(text, least, INT64_MAX, value.emplace());
          }};
}

ArgumentKey pixels(const char* name, int64_t& value, const char* help) {
  return {name, "a whole number of pixels, at least 1", help, [&value](const std::string& text) {
            return to_number<int64_t>(text, 1, INT64_MAX, value);
          }};
}

ArgumentKey number(const char* name, const char* wanted, double least, double most,
                   std::optional<double>& value, const char* help) {
  return {name, wanted, help, [&value, least, most](const std::string& text) {
            return to_number<double>(text, least, most, value.emplace());
          }};
}

std::vector<ArgumentKey> keys_for(GenerationArguments& arguments, bool writes_file,
                                  std::optional<int64_t>& seed,
                                  std::optional<int64_t>& batch_size) {
  constexpr double kSmall = 1e-6, kMost = 1e6;
  constexpr int64_t kMostFrames = 1'000'000;
  AssistantRequest& request = arguments.request;
  std::vector<ArgumentKey> keys = {
      words("model_name_or_path", "a folder", request.model_name_or_path,
            "a model's folder, or a LoRA adapter's, which knows its base model"),
      words("adapter_name_or_path", "folders with commas between", request.adapter_name_or_path,
            "LoRA adapters to merge into it"),
      {"template", fmt::format("one of: {}", fmt::join(named_templates(), ", ")),
       "how a conversation becomes text: a template name of `longspan train` [the model's own chat"
       " template; without one, texts are continued]",
       [&](const std::string& text) {
         request.template_name = text;
         const std::vector<std::string> names = named_templates();
         return std::ranges::find(names, text) != names.end();
       }},
      {"infer_dtype", "one of: auto, fp32, bf16", "auto: as config.json says [auto]",
       [&](const std::string& text) {
         // LLaMA-Factory's names next to the short ones.
         request.infer_dtype = dtype_named(text);
         return text == "auto" || request.infer_dtype == at::kFloat ||
                request.infer_dtype == at::kBFloat16;
       }},
      {"default_system", "text", "the system message",
       [&](const std::string& text) {
         request.default_system = text;
         return true;
       }},
      truth("enable_thinking", request.enable_thinking,
            "false: models that can think answer at once [true]"),
      truth("skip_special_tokens", request.skip_special_tokens,
            "leave tokens like <|im_end|> out of the text [true]"),
      truth("do_sample", request.do_sample,
            "true: sample each token; false: take the most probable token "
            "[generation_config.json's, or true where temperature, top_p or top_k are given]"),
      number("temperature", "a number, at least 0", 0, kMost, request.temperature,
             "larger: more random answers; 0: greedy"),
      number("top_p", "a number above 0, at most 1", kSmall, 1, request.top_p,
             "sample from the most probable tokens with this total probability [1]"),
      whole("top_k", 0, request.top_k,
            "sample from this number of most probable tokens; 0: all [50]"),
      number("repetition_penalty", "a number above 0", kSmall, kMost, request.repetition_penalty,
             "above 1: tokens that occurred before become less probable [1]"),
      whole("max_new_tokens", 1, request.max_new_tokens, "of an answer [1024]"),
      pixels("image_max_pixels", request.pictures.image_max_pixels,
             "larger pictures are made smaller [589824]"),
      pixels("image_min_pixels", request.pictures.image_min_pixels,
             "smaller pictures are made larger [1024]"),
      pixels("video_max_pixels", request.pictures.video_max_pixels,
             "larger frames of videos are made smaller [65536]"),
      pixels("video_min_pixels", request.pictures.video_min_pixels,
             "smaller frames of videos are made larger [256]"),
      {"video_fps", "a number above 0", "frames to sample per second of a video [2]",
       [&](const std::string& text) {
         return to_number<double>(text, kSmall, kMost, request.pictures.video_fps);
       }},
      {"video_maxlen", "a whole number, at least 1", "the most frames of a video [128]",
       [&](const std::string& text) {
         return to_number<int64_t>(text, 1, kMostFrames, request.pictures.video_maxlen);
       }},
      whole("seed", 0, seed,
            writes_file ? "of the random numbers [42]"
                        : "of the random numbers [another one each time]")};
  if (writes_file) {
    keys.push_back(
        words("output", "a file", arguments.output, "the file to write; must not exist [stdout]"));
    keys.push_back(whole("batch_size", 1, batch_size, "prompts that are answered at a time [8]"));
    keys.push_back(
        whole("max_samples", 1, arguments.max_samples, "the most prompts to answer [all]"));
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
    // A file name may contain an equals sign too; the text before it is then no key.
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
      const std::string nearest = nearest_name(name, names);
      throw UserError(fmt::format("{}: there is no key {}; {}", command, name,
                                  nearest.empty()
                                      ? fmt::format("`longspan help {}` names all", command)
                                      : fmt::format("the nearest is {}", nearest)));
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

FramePatches patches_for(const AssistantRequest& request, const Assistant& assistant) {
  if (!assistant.pictures) return {};
  Config config;
  config.model.model_name_or_path = assistant.model_folder;
  config.data = request.pictures;
  return frame_patches_of(config, {});
}

std::vector<GenerationKey> generation_keys(bool writes_file) {
  GenerationArguments unused;
  std::optional<int64_t> seed, batch_size;
  std::vector<GenerationKey> keys;
  const std::vector<ArgumentKey> of_both = keys_for(unused, false, seed, batch_size);
  for (const ArgumentKey& key : keys_for(unused, writes_file, seed, batch_size)) {
    GenerationKey one{key.name, key.wanted, key.help, {}};
    one.of_generate = std::ranges::find(of_both, key.name, &ArgumentKey::name) == of_both.end();
    constexpr std::string_view kOneOf = "one of: ";
    if (key.wanted == "true or false") one.values = {"true", "false"};
    if (key.wanted.starts_with(kOneOf)) one.values = split_names(key.wanted.substr(kOneOf.size()));
    keys.push_back(std::move(one));
  }
  return keys;
}

std::string generation_keys_help(bool writes_file) {
  constexpr size_t kWidth = 100, kColumn = 24;
  std::string text =
      "Keys, as key=value or --key value. Left out: the values of the model's "
      "generation_config.json:\n";
  for (const GenerationKey& key : generation_keys(writes_file)) {
    std::string line = fmt::format("  {:<{}}", key.name, kColumn - 2);
    for (size_t begin = 0; begin < key.help.size();) {
      const size_t end = std::min(key.help.find(' ', begin), key.help.size());
      if (line.size() + (end - begin) > kWidth) {
        text += line + "\n";
        line = std::string(kColumn, ' ');
      } else if (begin > 0) {
        line += " ";
      }
      line += key.help.substr(begin, end - begin);
      begin = end + 1;
    }
    text += line + "\n";
  }
  return text;
}

}  // namespace longspan
