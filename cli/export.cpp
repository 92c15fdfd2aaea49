// `longspan export`: a model with its adapters merged into it, as a Hugging Face folder.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/options.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/config/names.h"
#include "longspan/config/user_error.h"
#include "longspan/models/lora.h"
#include "longspan/text/counted.h"

namespace longspan {

namespace {

/// The dtype that the model's own config.json names; fp32 where it names none.
at::ScalarType dtype_of(const ModelConfig& config) {
  const auto json = nlohmann::json::parse(config.json, nullptr, /*allow_exceptions=*/false);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!json.is_object() || !json.contains(key) || !json.at(key).is_string()) continue;
    const std::string name = json.at(key);
    if (name == "bfloat16") return at::kBFloat16;
    if (name == "float16") return at::kHalf;
    if (name == "float32") return at::kFloat;
  }
  return at::kFloat;
}

int run(const Arguments& words) {
  if (words.empty() || words[0].starts_with("--") || words[0].find('=') != std::string::npos) {
    throw UserError(
        "export: the configuration file is missing: longspan export config.yaml [key=value ...]");
  }
  const Config config = load_export_config(words[0], {words.begin() + 1, words.end()});
  const ModelConfig model = load_model_config(config.model_name_or_path);
  require_free_folder("export", config.export_dir);
  // Merged in fp32, so that each weight is rounded once.
  std::vector<NamedTensor> parameters =
      load_parameters(config.model_name_or_path, model, at::kFloat);
  std::vector<NamedTensor> value_head = load_value_head(config.model_name_or_path, model);
  const std::vector<std::string> folders = split_names(config.adapter_name_or_path);
  for (const std::string& folder : folders) {
    const Adapter adapter = load_adapter(folder, model);
    parameters.insert(parameters.end(), adapter.parameters.begin(), adapter.parameters.end());
    merge_lora(parameters, adapter.shape.scale());
    if (auto head = load_value_head(folder, model); !head.empty()) value_head = std::move(head);
  }
  save_model_folder(config.export_dir, model, parameters, dtype_of(model),
                    config.model_name_or_path, static_cast<int64_t>(config.export_size * 1e9));
  save_value_head(config.export_dir, value_head);
  fmt::print("Wrote {} with {} merged into it to {}\n", model.architecture,
             counted(std::ssize(folders), "adapter"), config.export_dir);
  return 0;
}

constexpr const char* kHelp =
    R"(Merges LoRA adapters into their model and writes a Hugging Face folder.

  longspan export config.yaml
  longspan export config.yaml export_dir=models/merged

  model_name_or_path: models/base
  adapter_name_or_path: output/lora       # several with commas between are merged in this order
  export_dir: models/merged               # must not exist, or be empty
  export_size: 5                          # GB of a weight file at most

Weights are merged in fp32 and written in the dtype that the model's config.json names.
)";

}  // namespace

Command export_command() {
  return {"export", "merge LoRA adapters into a model folder", kHelp, run};
}

}  // namespace longspan
