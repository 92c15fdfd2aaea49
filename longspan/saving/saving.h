// The model on disk: checkpoint-N/ and output_dir. A folder or file under its final name is whole.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/comm/notices.h"
#include "longspan/config/model_settings.h"
#include "longspan/config/output_settings.h"
#include "longspan/config/preference_settings.h"
#include "longspan/models/model_config.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/held_parameter.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/text/saved_chat.h"

namespace longspan {

/// A folder that a run reads a model or an adapter from, and the key that names it.
struct SourceFolder {
  std::string key, folder;
};
std::vector<SourceFolder> source_folders(const ModelSettings& model,
                                         const PreferenceSettings& preferences);

/// Throws UserError when output_dir holds anything of an earlier run (weights, results,
/// checkpoints) that the run neither resumes from nor may overwrite, when it is one of
/// `sources`, or not a folder; and when resume_from_checkpoint names no checkpoint.
void check_output_dir(const OutputSettings& config, const std::vector<SourceFolder>& sources);

/// Makes output_dir, removes what a killed run left half-done there, and proves that it can be
/// written. Throws UserError.
void prepare_output_dir(const std::string& output_dir);

/// Writes a file into a folder and removes it. Throws UserError.
void prove_writable(const std::string& folder);

/// Finishes the work of a run that was killed while it moved the files of its final model into
/// output_dir: moves the rest there from the hidden folder, so that the model is wholly that run's.
/// The caller keeps other runs out. Throws UserError.
void finish_saved_model(const std::string& output_dir);

/// Removes logs, results and pictures of an earlier run, as the new one may write others, but for
/// the log when the new run resumes that one. Throws UserError.
void remove_reports(const std::string& output_dir, bool goes_on);

/// What a saved model is.
struct SavedModel {
  ModelConfig config;
  at::ScalarType dtype;           // of the weights on disk
  std::string source_folder;      // the model that training started from
  std::optional<LoraShape> lora;  // only the adapter is saved
  std::optional<SavedChat> chat;  // nullopt: as source_folder has it
  ParameterTable specs;           // of all parameters
  std::vector<HeldParameter>
      all;  // the same, in their order and in the dtypes that they are held in
};

/// Saves from one process; others wait for it.
class ModelSaver {
 public:
  explicit ModelSaver(SavedModel model);

  /// Weights, config and tokenizer into a folder that is there.
  void write_model(const std::string& folder, const std::vector<NamedTensor>& parameters) const;
  /// The same into `output_dir`, which it makes where it is missing. Removes what an earlier run
  /// has listed as its model (file_list.h).
  void save_final(const std::string& output_dir, const std::vector<NamedTensor>& parameters) const;
  /// The same for a model of which no rank holds all. Collective.
  void save_final_together(const std::string& output_dir, ShardedParameters& parameters,
                           const Group& world, Notices& notices) const;
  const SavedModel& model() const { return model_; }
  /// Does the file hold this parameter's values to the last bit?
  bool saves_exactly(const NamedTensor& parameter) const;

 private:
  SavedModel model_;
};

/// Runs a file-system action and turns the system's error into a UserError.
void on_disk(const std::string& path, const std::function<void()>& action);

}  // namespace longspan
