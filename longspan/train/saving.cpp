#include "longspan/train/saving.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/atomic_file.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/config/names.h"
#include "longspan/config/user_error.h"
#include "longspan/train/interrupt.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// What a run tells of itself in output_dir.
const std::set<std::string> kReports = {
    "trainer_state.json",     "trainer_log.jsonl",
    "train_results.json",     "eval_results.json",
    "all_results.json",       "training_loss.png",
    "training_eval_loss.png", "training_rewards_accuracies.png"};

/// Does a file or folder of this name tell of an earlier run?
bool is_result(const std::string& name) {
  return kReports.contains(name) || name.ends_with(".safetensors") ||
         name.starts_with("checkpoint-") || name == "config.json" ||
         name == "model.safetensors.index.json" || name == "pytorch_model.bin" ||
         name == "adapter_config.json";
}

/// Runs a file-system action; what the system says becomes the user's message.
void on_disk(const std::string& path, const std::function<void()>& action) {
  try {
    action();
  } catch (const fs::filesystem_error& error) {
    throw UserError(fmt::format("{}: cannot be written ({}). {}", path, error.code().message(),
                                remedy_for(error.code().value())));
  }
}

}  // namespace

void check_output_dir(const Config& config) {
  const std::string& output_dir = config.output_dir;
  if (output_dir.empty()) throw UserError("output_dir is not set; name a folder for the results.");
  std::error_code error;
  const fs::file_status status = fs::status(output_dir, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) {
    throw UserError(fmt::format("output_dir {} is a file; name a folder.", output_dir));
  }
  const auto protect = [&](const char* key, const std::string& folder) {
    if (folder.empty() || !fs::equivalent(output_dir, folder, error)) return;
    throw UserError(
        fmt::format("output_dir {} is the folder of {}; what is there would be replaced by what is "
                    "trained. Choose another folder.",
                    output_dir, key));
  };
  protect("model_name_or_path", config.model_name_or_path);
  protect("ref_model", config.ref_model);
  for (const std::string& folder : split_names(config.adapter_name_or_path)) {
    protect("adapter_name_or_path", folder);
  }
  for (const std::string& folder : split_names(config.ref_model_adapters)) {
    protect("ref_model_adapters", folder);
  }
  if (config.overwrite_output_dir) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_dir, error)) {
    const std::string name = entry.path().filename();
    if (!is_result(name)) continue;
    throw UserError(
        fmt::format("output_dir {} holds results of an earlier run ({}). Nothing was touched. "
                    "Choose another folder, or set overwrite_output_dir: true.",
                    output_dir, name));
  }
}

void prepare_output_dir(const std::string& output_dir) {
  on_disk(output_dir, [&] {
    fs::create_directories(output_dir);
    for (const std::string& name : kReports) fs::remove(output_dir + "/" + name);
  });
  const std::string probe = output_dir + "/.longspan-can-write";
  write_file_atomically(probe, "yes\n");
  fs::remove(probe);
}

ModelSaver::ModelSaver(std::string output_dir, SavedModel model,
                       std::optional<int64_t> save_total_limit)
    : output_dir_(std::move(output_dir)),
      model_(std::move(model)),
      save_total_limit_(save_total_limit) {}

void ModelSaver::write_model(const std::string& folder,
                             const std::vector<NamedTensor>& parameters) const {
  on_disk(folder, [&] {
    if (model_.lora) {
      save_adapter(folder, *model_.lora, parameters, model_.dtype, model_.source_folder);
    } else {
      std::vector<NamedTensor> own;
      for (const NamedTensor& parameter : parameters) {
        if (!parameter.name.starts_with("v_head.")) own.push_back(parameter);
      }
      save_model_folder(folder, model_.config, own, model_.dtype, model_.source_folder);
    }
    save_value_head(folder, parameters);
  });
}

std::string ModelSaver::temporary_folder(std::optional<int64_t> step) const {
  return step ? fmt::format("{}/.checkpoint-{}.partial", output_dir_, *step)
              : output_dir_ + "/.model.partial";
}

std::string ModelSaver::save_checkpoint(int64_t step, const std::vector<NamedTensor>& parameters,
                                        const std::function<void(const std::string&)>& add_files) {
  const TemporaryFolder temporary(temporary_folder(step));
  write_model(temporary.path(), parameters);
  return finish_checkpoint(step, add_files);
}

std::string ModelSaver::finish_checkpoint(
    int64_t step, const std::function<void(const std::string&)>& add_files) {
  const std::string temporary = temporary_folder(step);
  const std::string target = fmt::format("{}/checkpoint-{}", output_dir_, step);
  on_disk(temporary, [&] { add_files(temporary); });
  const UninterruptedScope uninterrupted;
  on_disk(target, [&] {
    // Of an earlier run, and overwrite_output_dir was set: a rename needs the name free.
    fs::remove_all(target);
    fs::rename(temporary, target);
    checkpoints_.push_back(target);
    const int64_t limit = save_total_limit_.value_or(0);
    while (limit > 0 && static_cast<int64_t>(checkpoints_.size()) > limit) {
      fs::remove_all(checkpoints_.front());
      checkpoints_.pop_front();
    }
  });
  return target;
}

void ModelSaver::save_final(const std::vector<NamedTensor>& parameters) const {
  const TemporaryFolder temporary(temporary_folder({}));
  write_model(temporary.path(), parameters);
  finish_final();
}

void ModelSaver::finish_final() const {
  const UninterruptedScope uninterrupted;
  on_disk(output_dir_, [&] {
    std::set<std::string> fresh;
    for (const fs::directory_entry& entry : fs::directory_iterator(temporary_folder({}))) {
      fs::rename(entry.path(), output_dir_ + "/" + entry.path().filename().string());
      fresh.insert(entry.path().filename());
    }
    remove_other_weights(output_dir_, fresh);
  });
}

}  // namespace longspan
