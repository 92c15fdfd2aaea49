#include "longspan/saving/saving.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/adapter_positions.h"
#include "longspan/checkpoint/chat_files.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/file_list.h"
#include "longspan/files/left_temporary.h"
#include "longspan/files/written_names.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/report/curves.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/output_folders.h"
#include "longspan/saving/pissa_folders.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/sharded_saving.h"
#include "longspan/settings/choices.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// The report files of a run in output_dir.
const std::set<std::string>& reports() {
  static const std::set<std::string> names = [] {
    std::set<std::string> all = pictures_of_runs();
    all.insert({"trainer_state.json", "trainer_log.jsonl", "train_results.json",
                "eval_results.json", "predict_results.json", "all_results.json", kAnswersFile});
    return all;
  }();
  return names;
}

constexpr const char* kLog = "trainer_log.jsonl";

/// True if a file or folder of this name is a result of an earlier run. A log alone is no result:
/// the run was killed before it saved anything.
bool is_result(const std::string& name) {
  return (reports().contains(name) && name != kLog) || name.ends_with(".safetensors") ||
         name.starts_with("checkpoint-") || name == "config.json" ||
         name == "model.safetensors.index.json" || name == "pytorch_model.bin" ||
         name == "adapter_config.json";
}

std::string final_temporary(const std::string& output_dir) {
  return output_dir + "/" + kUnfinishedModel;
}

/// An unlisted chat template next to the new model would take precedence over the model's own.
void rename_other_chat_templates(const std::string& folder, const std::set<std::string>& fresh) {
  for (const char* name : {"chat_template.jinja", "chat_template.json"}) {
    std::error_code error;
    const bool is_there = fs::exists(fs::symlink_status(folder + "/" + name, error));
    if (is_there && !fresh.contains(name)) rename_to_kept(folder, name);
  }
}

/// Moves the final model's files into output_dir and removes the files that an earlier run has
/// listed as its model there. Moves the list last, so that the folder shows until then that the
/// move is incomplete.
void move_final(const std::string& output_dir) {
  const UninterruptedScope uninterrupted;
  const std::string from = final_temporary(output_dir);
  on_disk(output_dir, [&] {
    const FileList before = read_file_list(output_dir);
    std::set<std::string> fresh{kFileList};
    for (const auto& [name, listed] : read_file_list(from)) fresh.insert(name);
    for (const std::string& name : fresh) {
      if (name != kFileList && fs::exists(from + "/" + name)) {
        fs::rename(from + "/" + name, output_dir + "/" + name);
      }
    }
    remove_listed(output_dir, before, fresh);
    remove_other_weights(output_dir, fresh);
    rename_other_chat_templates(output_dir, fresh);
    sync_folder(output_dir);
    fs::rename(from + "/" + kFileList, output_dir + "/" + kFileList);
    sync_folder(output_dir);
  });
}

}  // namespace

void on_disk(const std::string& path, const std::function<void()>& action) {
  try {
    action();
  } catch (const fs::filesystem_error& error) {
    const int number = error.code().value();
    throw_disk_error(number, fmt::format("{}: cannot be written ({}). {}", path,
                                         error.code().message(), remedy_for(number)));
  }
}

std::vector<SourceFolder> source_folders(const ModelSettings& model,
                                         const PreferenceSettings& preferences) {
  std::vector<SourceFolder> sources{{"model_name_or_path", model.model_name_or_path},
                                    {"ref_model", preferences.ref_model}};
  for (std::string& folder : split_names(model.adapter_name_or_path)) {
    sources.push_back({"adapter_name_or_path", std::move(folder)});
  }
  for (std::string& folder : split_names(preferences.ref_model_adapters)) {
    sources.push_back({"ref_model_adapters", std::move(folder)});
  }
  std::erase_if(sources, [](const SourceFolder& source) { return source.folder.empty(); });
  return sources;
}

void check_output_dir(const OutputSettings& config, const std::vector<SourceFolder>& sources) {
  const std::string& output_dir = config.output_dir;
  if (output_dir.empty()) throw UserError("output_dir is not set; name a folder for the results.");
  const bool goes_on = goes_on_in(config);
  std::error_code error;
  const fs::file_status status = fs::status(output_dir, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) {
    throw UserError(fmt::format("output_dir {} is a file; name a folder.", output_dir));
  }
  for (const auto& [key, folder] : sources) {
    if (!fs::equivalent(output_dir, folder, error)) continue;
    throw UserError(
        fmt::format("output_dir {} is the folder of {}; the trained model would replace its "
                    "files. Choose another folder.",
                    output_dir, key));
  }
  if (config.overwrite_output_dir || goes_on) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_dir, error)) {
    const std::string name = entry.path().filename();
    if (!is_result(name)) continue;
    throw UserError(fmt::format(
        "output_dir {} holds results of an earlier run ({}){}. Nothing was changed. Choose another "
        "folder, or set overwrite_output_dir: true.",
        output_dir, name,
        name.starts_with("checkpoint-") && resume_from(config) != ResumeFrom::kNothing
            ? ", and its checkpoints hold only the model: a run cannot resume from them"
            : ""));
  }
}

void prepare_output_dir(const std::string& output_dir) {
  on_disk(output_dir, [&] {
    fs::create_directories(output_dir);
    remove_leftovers(output_dir);
  });
  prove_writable(output_dir);
}

void prove_writable(const std::string& folder) {
  const std::string probe = folder + "/" + temporary_name("can-write");
  write_file_atomically(probe, "yes\n");
  std::error_code ignored;
  fs::remove(probe, ignored);
}

void finish_saved_model(const std::string& output_dir) {
  const std::string from = final_temporary(output_dir);
  std::error_code error;
  if (!foreign_entry(from).empty() || read_file_list(from).empty()) return;
  move_final(output_dir);
  fs::remove(from, error);  // only if it is empty
}

void remove_reports(const std::string& output_dir, bool goes_on) {
  on_disk(output_dir, [&] {
    for (const std::string& name : reports()) {
      if (!goes_on || name != kLog) fs::remove(output_dir + "/" + name);
    }
  });
}

ModelSaver::ModelSaver(SavedModel model)
    : model_(std::make_shared<const SavedModel>(std::move(model))) {}

void ModelSaver::write_model(const std::string& folder,
                             const std::vector<NamedTensor>& parameters) const {
  on_disk(folder, [&] {
    std::vector<NamedTensor> own;
    for (const NamedTensor& parameter : parameters) {
      const ParameterRole role = model_->specs.of(parameter.name).role;
      if (model_->lora ? is_of_adapter(*model_, parameter.name) : !is_value_head(role)) {
        own.push_back(parameter);
      }
    }
    if (model_->lora) {
      save_adapter(folder, model_->config, {*model_->lora, own}, model_->dtype,
                   model_->source_folder, model_->pissa ? model_->pissa->name : "");
      save_positions(folder, model_->config, model_->source_folder);
    } else {
      save_model_folder(folder, model_->config, own, model_->dtype, model_->source_folder);
    }
    save_value_head(folder, value_head_among(parameters, model_->specs));
    write_added_tokens(folder, model_->added);
    if (model_->chat) write_chat(folder, *model_->chat);
  });
}

bool ModelSaver::saves_exactly(const NamedTensor& parameter) const {
  // A value head is always saved in fp32.
  return parameter.tensor.scalar_type() == model_->dtype ||
         is_value_head(model_->specs.of(parameter.name).role);
}

void ModelSaver::save_final(const std::string& output_dir,
                            const std::vector<NamedTensor>& parameters) const {
  const TemporaryFolder temporary(final_temporary(output_dir));
  write_model(temporary.path(), parameters);
  std::vector<NamedTensor> adapter;
  for (const NamedTensor& parameter : parameters) {
    if (is_lora(model_->specs.of(parameter.name).role)) adapter.push_back(parameter);
  }
  // Before the model's files, which show that the run is complete.
  save_converted(output_dir, *model_, adapter);
  on_disk(temporary.path(), [&] { write_file_list(temporary.path()); });
  move_final(output_dir);
}

void ModelSaver::save_final_together(const std::string& output_dir, ShardedParameters& parameters,
                                     const Group& world, Notices& notices) const {
  std::optional<TemporaryFolder> temporary;
  all_or_none_patiently(world, notices, [&] {
    if (world.rank() == 0) temporary.emplace(final_temporary(output_dir));
  });
  write_sharded_model(final_temporary(output_dir), *model_, parameters, world, notices);
  const std::vector<NamedTensor> adapter =
      model_->pissa ? gathered_adapter(*model_, parameters, world) : std::vector<NamedTensor>();
  all_or_none_patiently(world, notices, [&] {
    if (world.rank() != 0) return;
    save_converted(output_dir, *model_, adapter);
    on_disk(temporary->path(), [&] { write_file_list(temporary->path()); });
    move_final(output_dir);
  });
}

}  // namespace longspan
