// `longspan export`: merges adapters into a model and writes a Hugging Face folder.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/adapter_positions.h"
#include "longspan/checkpoint/chat_files.h"
#include "longspan/checkpoint/grown_vocabulary.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/config.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/data/turns.h"
#include "longspan/files/folder_lock.h"
#include "longspan/input/json_text.h"
#include "longspan/models/composite.h"
#include "longspan/models/dtype_words.h"
#include "longspan/models/lora.h"
#include "longspan/models/own_head.h"
#include "longspan/models/rope_scaling.h"
#include "longspan/registers/stage.h"
#include "longspan/saving/output_room.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"
#include "longspan/text/print.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

/// Returns the dtype in the model's config.json; if it names none, bf16 for quantized models and
/// fp32 for others.
at::ScalarType dtype_of(const ModelConfig& config) {
  const std::string name = dtype_in(parse_json(config.json, "config.json"));
  if (name.empty() && config.stored != StoredNumbers{}) return at::kBFloat16;
  const at::ScalarType named = dtype_named(name).value_or(at::kFloat);
  return named == at::kDouble ? at::kFloat : named;
}

bool has_tokenizer(const std::string& folder) {
  return fs::exists(fs::path(folder) / "tokenizer.json");
}

/// Returns the last adapter whose tokenizer has more tokens than the model's, else the model.
std::string tokenizer_folder(const std::string& model, const std::vector<std::string>& adapters) {
  if (!has_tokenizer(model)) return model;
  const int64_t num_tokens = Tokenizer::load(model).vocab_size();
  for (auto folder = adapters.rbegin(); folder != adapters.rend(); ++folder) {
    if (has_tokenizer(*folder) && Tokenizer::load(*folder).vocab_size() > num_tokens)
      return *folder;
  }
  return model;
}

/// Returns the chat settings of the configured template, else of the last adapter with a tokenizer.
/// nullopt: the model's own.
std::optional<SavedChat> chat_of(const Config& config, const std::string& model,
                                 const std::vector<std::string>& adapters) {
  if (!config.data.chat_template.empty())
    return saved_chat(config.data, stage_of(config.method), run_tokenizer(model, config.data),
                      local_time_now());
  const auto last = std::find_if(adapters.rbegin(), adapters.rend(), has_tokenizer);
  if (last == adapters.rend() || !has_tokenizer(model)) return std::nullopt;
  return chat_that_differs(Tokenizer::load(model), Tokenizer::load(*last));
}

/// An export that was killed may have left its lock file.
void require_empty(const std::string& target) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(target, error)) {
    const std::string name = entry.path().filename();
    if (name == kLockFile) continue;
    throw UserError(fmt::format(
        "export_dir {} is not empty (it holds {}): nothing was written. Name a folder that does "
        "not exist yet, or empty this one.",
        target, name));
  }
}

/// Checks that export_dir is an own, writable folder, empty or missing.
void check_export_dir(const Config& config) {
  const std::string& target = config.exporting.export_dir;
  std::error_code error;
  if (fs::exists(target, error) && !fs::is_directory(target, error)) {
    throw UserError(
        fmt::format("export_dir {} is a file; name a folder that does not exist yet.", target));
  }
  const fs::path folder = fs::weakly_canonical(target, error);
  const auto keep_apart = [&](const char* key, const std::string& source) {
    const fs::path other = fs::weakly_canonical(source, error);
    const auto [end, rest] =
        std::mismatch(other.begin(), other.end(), folder.begin(), folder.end());
    if (end != other.end()) return;
    throw UserError(fmt::format(
        "export_dir {} is {} {} {}: the merged model needs a separate folder. Nothing was written."
        " Name a folder that does not exist yet, beside it.",
        target, folder == other ? "the folder of" : "inside of the folder of", key, source));
  };
  keep_apart("model_name_or_path", config.model.model_name_or_path);
  for (const std::string& adapter : split_names(config.model.adapter_name_or_path)) {
    keep_apart("adapter_name_or_path", adapter);
  }
  require_not_locked("export_dir", target);
  require_empty(target);
  try_folder("export_dir", target);
}

/// Returns the model with the positions of its adapters' training, or those that the keys ask for
/// if no adapter has any. Throws UserError if both exist and differ.
ModelConfig positions_for(const Config& config, const ModelConfig& own) {
  const ModelConfig trained =
      with_positions_of(split_names(config.model.adapter_name_or_path), own);
  const ModelConfig asked = stretched(own, config.model.rope_scaling, config.data.cutoff_len,
                                      config.model.model_name_or_path);
  const bool has_own = !same_positions(trained, own);
  if (has_own && !config.model.rope_scaling.empty() && !same_positions(trained, asked)) {
    throw UserError(fmt::format(
        "rope_scaling: {} with cutoff_len {} is not what the adapter was trained with: {} with "
        "factor {:g}, {} positions (longspan_adapter.json in its folder). Leave both keys out.",
        config.model.rope_scaling, config.data.cutoff_len, name_of(trained.rotary.scaling.type),
        trained.rotary.scaling.factor, trained.max_position_embeddings));
  }
  if (has_own) {
    print_out("Positions as the adapter was trained: {} with factor {:g}, {} positions.\n",
              name_of(trained.rotary.scaling.type), trained.rotary.scaling.factor,
              trained.max_position_embeddings);
    return trained;
  }
  const std::string stretch =
      describe_stretch(own, asked, config.model.rope_scaling, config.data.cutoff_len);
  if (!stretch.empty()) print_out("{}\n", stretch);
  return asked;
}

int run_export(const Arguments& words) {
  if (words.empty() || words[0].starts_with("--") || words[0].find('=') != std::string::npos) {
    throw UserError(
        "export: the configuration file is missing: longspan export config.yaml [key=value ...]");
  }
  const Config config = load_export_config(words[0], {words.begin() + 1, words.end()});
  for (const std::string& note : config.notes) print_out("note: {}\n", note);
  const std::vector<std::string> folders = split_names(config.model.adapter_name_or_path);
  const ModelConfig own = with_adapted_tower(
      folders,
      with_adapted_vocabulary(folders, load_folder_config(config.model.model_name_or_path)));
  if (const std::string head = describe_own_head(config.model.model_name_or_path, own);
      !head.empty()) {
    print_out("warning: {}\n", head);
  }
  const ModelConfig model = positions_for(config, own);
  check_export_dir(config);
  const std::string tokens = tokenizer_folder(config.model.model_name_or_path, folders);
  const AddedTokens added = added_tokens(config.data);
  if (!added.empty()) {
    require_rows(run_tokenizer(tokens, config.data), added, model.spec.vocab_size,
                 "the merged model",
                 "Only adapters that were trained with resize_vocab have rows for more tokens.");
  }
  // Merges in fp32, so that each weight is rounded once.
  std::vector<NamedTensor> parameters =
      load_grown(config.model.model_name_or_path, model, at::kFloat);
  std::vector<NamedTensor> value_head = load_value_head(config.model.model_name_or_path, model);
  for (const std::string& folder : folders) {
    const Adapter adapter = load_adapter(folder, model);
    parameters.insert(parameters.end(), adapter.parameters.begin(), adapter.parameters.end());
    merge_lora(model.spec, parameters, adapter.shape.scale());
    if (const int64_t count = num_value_head_tensors(folder); count > 0) {
      print_out("{}: {} of a value head (v_head.*) beside the adapter: not read.\n", folder,
                counted(count, "tensor"));
    }
    if (auto head = load_value_head(folder, model); !head.empty()) value_head = std::move(head);
  }
  int64_t num_bytes = 0;
  for (const NamedTensor& parameter : parameters) num_bytes += parameter.tensor.numel();
  num_bytes *= static_cast<int64_t>(c10::elementSize(dtype_of(model)));
  if (const std::optional<int64_t> free = free_bytes(config.exporting.export_dir);
      free && *free < num_bytes) {
    throw UserError(fmt::format(
        "The merged model needs {}, but only {} are free for export_dir {}. Nothing was written. "
        "Free some space or name a folder on another disk.",
        name_bytes(num_bytes), name_bytes(*free), config.exporting.export_dir));
  }
  const FolderLock lock("export_dir", config.exporting.export_dir);
  require_empty(config.exporting.export_dir);
  save_model_folder(config.exporting.export_dir, model, parameters, dtype_of(model),
                    config.model.model_name_or_path,
                    static_cast<int64_t>(config.exporting.export_size * 1e9));
  save_value_head(config.exporting.export_dir, value_head);
  if (tokens != config.model.model_name_or_path) {
    copy_tokenizer_files(tokens, config.exporting.export_dir);
  }
  write_added_tokens(config.exporting.export_dir, added);
  if (const auto chat = chat_of(config, tokens, folders))
    write_chat(config.exporting.export_dir, *chat);
  print_out("Wrote {} with {} merged into it to {}\n", model.architecture,
            counted(std::ssize(folders), "adapter"), config.exporting.export_dir);
  return 0;
}

constexpr const char* kExportHelp =
    R"(Merges LoRA adapters into their model and writes a Hugging Face folder.

  longspan export config.yaml
  longspan export config.yaml export_dir=models/merged

  model_name_or_path: models/base
  adapter_name_or_path: output/lora       # several with commas between are merged in this order
  export_dir: models/merged               # must not exist, or be empty
  export_size: 5                          # GB of a weight file at most

The merged model has the chat template and end token with which the adapter was trained (from the
adapter's folder), or those of the key `template`. Its positions are the positions of the adapter's
training. For adapters of older versions, give rope_scaling and the cutoff_len of training.
Weights are merged in fp32 and written in the dtype that the model's config.json names.
)";

}  // namespace

Command export_command() {
  return {"export", "merge LoRA adapters into a model folder", kExportHelp, run_export,
          /*computes=*/true};
}

}  // namespace longspan
