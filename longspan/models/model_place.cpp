#include "longspan/models/model_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/models/family.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWanted =
    "Wanted is a Hugging Face model folder: config.json, tokenizer files and *.safetensors.";
constexpr const char* kFromGguf =
    "Download the folder of the original model; or convert the file in Python: "
    "AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=NAME), AutoTokenizer the same way, and "
    "save_pretrained() of both.";
constexpr const char* kFromPickle =
    "Load it in transformers and save_pretrained() it, which writes safetensors.";

bool has_suffix(const std::string& name, const std::vector<const char*>& suffixes) {
  return std::ranges::any_of(suffixes, [&](const char* suffix) { return name.ends_with(suffix); });
}

bool is_pickled(const std::string& name) {
  return has_suffix(name, {".bin", ".pt", ".pth", ".ckpt"}) && name != "training_args.bin" &&
         name != "scheduler.pt" && name != "optimizer.pt" && !name.starts_with("rng_state");
}

/// Returns the names of the folder's entries, sorted.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

std::string first_name(const fs::path& folder, const std::function<bool(const std::string&)>& is) {
  const std::vector<std::string> names = names_in(folder);
  const auto found = std::ranges::find_if(names, is);
  return found == names.end() ? "" : *found;
}

[[noreturn]] void refuse_file(const std::string& path) {
  const std::string name = fs::path(path).filename(), head = first_bytes(path, 4);
  // The absolute path: "." would read as the end of the sentence.
  const fs::path folder = fs::absolute(path).lexically_normal().parent_path();
  std::string what, remedy;
  if (head == "GGUF" || name.ends_with(".gguf")) {
    what = "is a GGUF file, the format of llama.cpp, mostly quantized";
    remedy = kFromGguf;
  } else if (name.ends_with(".safetensors")) {
    what = "is one file of a model's weights";
    remedy = fmt::format("Give the folder that holds it, {}, instead.", folder.string());
  } else if (is_pickled(name)) {
    what = "is a file of pickled weights";
    remedy = kFromPickle;
  } else if (has_suffix(name, {".zip", ".tar", ".gz", ".tgz", ".zst", ".7z"})) {
    what = "is an archive";
    remedy = "Unpack it and give the folder.";
  } else {
    what = "is a file";
    remedy = "Give the path of the folder.";
  }
  throw UserError(fmt::format("{} {}. {} {}", path, what, kWanted, remedy));
}

[[noreturn]] void refuse_adapter(const std::string& folder) {
  const auto json =
      read_json_file(model_file(folder, "adapter_config.json"), "configuration of an adapter");
  std::string base;
  if (json.is_object() && json.value("base_model_name_or_path", nlohmann::json()).is_string()) {
    base = json.at("base_model_name_or_path").get<std::string>();
  }
  throw UserError(fmt::format(
      "{} is the folder of an adapter{}, not of a model. {} Name the model in model_name_or_path "
      "and the adapter in adapter_name_or_path, with finetuning_type: lora to train on; or merge "
      "both by `longspan export`.",
      folder, base.empty() ? "" : fmt::format(" of the model {}", base), kWanted));
}

/// Says why the folder has no config.json.
[[noreturn]] void refuse_folder(const std::string& path) {
  const fs::path folder(path);
  const auto say = [&](const std::string& what, const std::string& remedy) {
    throw UserError(fmt::format("{} has no config.json{}. {} {}", path, what, kWanted, remedy));
  };
  if (is_there(folder / "adapter_config.json")) refuse_adapter(path);
  for (const fs::path& below : {folder / "snapshots", folder}) {
    for (const std::string& name : names_in(below)) {
      if (!is_there(below / name / "config.json")) continue;
      say(below == folder ? ", but a folder in it has" : ": it is a cache of the hub",
          fmt::format("Give {} instead.", (below / name).string()));
    }
  }
  const auto named = [&](const std::function<bool(const std::string&)>& is) {
    return first_name(folder, is);
  };
  const std::string gguf = named([](const std::string& name) { return name.ends_with(".gguf"); });
  if (!gguf.empty()) say(fmt::format(", but {}, a file of llama.cpp's", gguf), kFromGguf);
  if (is_there(folder / "model_index.json")) {
    say(": it holds a pipeline of diffusers, which makes pictures", "Give a language model.");
  }
  if (is_there(folder / "params.json")) {
    say(", but params.json: it is in the layout of the model's makers",
        "Download the model in Hugging Face's layout.");
  }
  const std::string pickled = pickled_weights(path);
  if (!pickled.empty()) say(fmt::format(", but {}, pickled weights", pickled), kFromPickle);
  const std::string weights =
      named([](const std::string& name) { return name.ends_with(".safetensors"); });
  if (!weights.empty()) say(fmt::format(", but {}", weights), "Fetch the other files, too.");
  say(names_in(folder).empty() ? ": it is empty" : "", "Check the path.");
  throw std::logic_error("a folder without a model that nothing is said of");
}

}  // namespace

std::string pickled_weights(const std::string& folder) { return first_name(folder, is_pickled); }

void require_real_files(const std::string& folder) {
  require_own_files(folder);
  for (const std::string& name : names_in(folder)) {
    const bool is_text =
        has_suffix(name, {".json", ".jinja", ".txt", ".model"}) && name != "README.md";
    if (!is_text && !name.ends_with(".safetensors")) continue;
    const fs::path path = fs::path(folder) / name;
    std::string head = first_bytes(path.string(), 512);
    if (head.starts_with("version https://git-lfs.github.com/spec/")) {
      const size_t at = head.find("\nsize ");
      const std::string size =
          at == std::string::npos ? "" : head.substr(at + 6, head.find('\n', at + 6) - at - 6);
      throw UserError(fmt::format(
          "{} is a Git LFS pointer{}, not the file itself: the repository was cloned without its "
          "large files. Run `git lfs install` and `git lfs pull` in {}, or download the folder "
          "with `hf download`.",
          path.string(), size.empty() ? "" : fmt::format(" to a file of {} bytes", size), folder));
    }
    head.erase(0, std::min(head.find_first_not_of(" \t\r\n\xef\xbb\xbf"), head.size()));
    std::ranges::transform(head, head.begin(), [](unsigned char c) { return std::tolower(c); });
    if (head.starts_with("<!doctype html") || head.starts_with("<html")) {
      throw UserError(fmt::format(
          "{} is a web page, not the file itself: it was downloaded from the address of the page "
          "that shows the file (.../blob/..., where the file is at .../resolve/...), or from one "
          "that asks for a login. Download it again, for example with `hf download`.",
          path.string()));
    }
  }
}

void require_plain_weights(const std::string& folder) {
  const std::string path = model_file(folder, "config.json");
  const auto text = read_text_file_if_there(path, "model configuration");
  if (!text) return;
  const nlohmann::json json = parse_json(*text, path);
  if (!json.is_object()) return;
  const auto found = json.find("quantization_config");
  if (found == json.end() || found->is_null()) return;
  const auto type = json.find("model_type");
  const Family* const family =
      type != json.end() && type->is_string() ? family_of_type(type->get<std::string>()) : nullptr;
  if (family != nullptr && read_stored(*family, json, path)) return;
  const nlohmann::json given =
      found->is_object() ? found->value("quant_method", nlohmann::json()) : nlohmann::json();
  const std::string method = given.is_string() ? given.get<std::string>() : "";
  // First the script of the model's makers: transformers 5 requires blocks of 128 to fill each
  // matrix.
  const char* const remedy =
      method == "fp8"
          ? "make a copy in bf16: by the script of its makers (DeepSeek-V3's is "
            "inference/fp8_cast_bf16.py), with this config.json less quantization_config; or load "
            "it in transformers with FineGrainedFP8Config(dequantize=True), save_pretrained()"
          : "dequantize: load it in transformers, model.dequantize(), save_pretrained()";
  throw UserError(fmt::format(
      "{}/config.json has quantization_config{}: the folder holds a quantized copy of a model, and "
      "training reads plain weights (float32, bfloat16 or float16), and GPTQ and AWQ under LoRA. "
      "Give the folder of the original model; or, where there is none, {}.",
      folder, method.empty() ? "" : fmt::format(" (quant_method {})", method), remedy));
}

void require_model_place(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status) && error != std::errc::no_such_file_or_directory && error) {
    throw UserError(fmt::format("cannot read the model {}: {}", path, error.message()));
  }
  if (!fs::exists(status)) {
    throw UserError(fmt::format(
        "Cannot read {}: there is no such folder. Models are not fetched by name from a hub: "
        "download the folder first (config.json, tokenizer files, safetensors) and give its path.",
        path));
  }
  if (!fs::is_directory(status)) {
    require_readable_file(path, "model configuration", kAnySize);
    // `longspan init` accepts a config.json under any name.
    const std::string head = first_bytes(path, 64);
    const size_t first = head.find_first_not_of(" \t\r\n");
    const bool is_object = first != std::string::npos && head[first] == '{';
    if (!path.ends_with(".json") && !is_object) refuse_file(path);
    return;
  }
  if (!is_there(model_file(path, "config.json"))) refuse_folder(path);
  require_real_files(path);
}

}  // namespace longspan
