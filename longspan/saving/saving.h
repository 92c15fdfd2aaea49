// The model on disk: checkpoint-N/ and output_dir. A folder or file under its final name is
// complete.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/liveness/notices.h"
#include "longspan/models/model_config.h"
#include "longspan/optim/sharded_parameters.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/output_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/spec/held_parameter.h"
#include "longspan/spec/lora_spec.h"
#include "longspan/text/added_tokens.h"
#include "longspan/text/saved_chat.h"

namespace longspan {

/// A folder from which a run reads a model or an adapter, and the key that names it.
struct SourceFolder {
  std::string key, folder;
};
std::vector<SourceFolder> source_folders(const ModelSettings& model,
                                         const PreferenceSettings& preferences);

/// Throws UserError in these cases: output_dir is not a folder, or is one of `sources`; output_dir
/// holds anything of an earlier run (weights, results, checkpoints) that the run neither resumes
/// from nor may overwrite; resume_from_checkpoint names no checkpoint.
void check_output_dir(const OutputSettings& config, const std::vector<SourceFolder>& sources);

/// Creates output_dir, removes incomplete files of a killed run, and checks that it is writable.
/// Throws UserError.
void prepare_output_dir(const std::string& output_dir);

/// Writes a file into a folder and removes it. Throws UserError.
void prove_writable(const std::string& folder);

/// A run may have been killed while it moved its final model's files into output_dir. Completes the
/// move, so that all files of the model are from that run. The caller must keep other runs out.
/// Throws UserError.
void finish_saved_model(const std::string& output_dir);

/// Removes the logs, results and plots of an earlier run, which the new run may not overwrite;
/// keeps the log if `goes_on` (the new run resumes the earlier one). Throws UserError.
void remove_reports(const std::string& output_dir, bool goes_on);

/// An adapter whose start is a part of the weights.
struct Pissa {
  std::string name;  // in adapter_config.json
  /// The adapter before training, for plain LoRA beside the adapter; empty: no conversion.
  std::vector<NamedTensor> first_adapter;
};

/// Description of a saved model.
struct SavedModel {
  ModelConfig config;
  at::ScalarType dtype;            // of the weights on disk
  std::string source_folder;       // of the model that training started from
  std::optional<LoraShape> lora;   // if set, only the adapter is saved
  std::optional<SavedChat> chat;   // nullopt: chat settings of source_folder
  ParameterTable specs;            // of all parameters
  std::vector<HeldParameter> all;  // all parameters in order, with their dtypes in memory
  std::optional<Pissa> pissa = {};
  AddedTokens added = {};  // of the tokenizer, beside those of source_folder
};

/// Saves a model, from one process unless said otherwise. Copies share the description.
class ModelSaver {
 public:
  explicit ModelSaver(SavedModel model);

  /// Writes weights, config and tokenizer into an existing folder.
  void write_model(const std::string& folder, const std::vector<NamedTensor>& parameters) const;
  /// Saves into `output_dir`, which is created if missing. Removes the files that an earlier run
  /// has listed as its model (file_list.h).
  void save_final(const std::string& output_dir, const std::vector<NamedTensor>& parameters) const;
  /// As save_final(), for a model that no rank holds completely. Collective.
  void save_final_together(const std::string& output_dir, ShardedParameters& parameters,
                           const Group& world, Notices& notices) const;
  const SavedModel& model() const { return *model_; }
  /// True if the file holds this parameter's values exactly.
  bool saves_exactly(const NamedTensor& parameter) const;

 private:
  std::shared_ptr<const SavedModel> model_;
};

/// Runs a file-system action and converts system errors to UserError.
void on_disk(const std::string& path, const std::function<void()>& action);

}  // namespace longspan
