// The model on disk: checkpoint-N/ and output_dir. A folder or file under its final name is whole.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/config/config.h"
#include "longspan/models/decoder.h"
#include "longspan/models/lora.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// Throws UserError when output_dir holds anything of an earlier run (weights, logs, results,
/// checkpoints) and may not be overwritten, when it is the model that training starts from, or not
/// a folder.
void check_output_dir(const Config& config);

/// Makes output_dir and proves that it can be written; logs, results and pictures of an earlier run
/// go, as the new one may write others. Throws UserError.
void prepare_output_dir(const std::string& output_dir);

/// What a saved model is.
struct SavedModel {
  ModelConfig config;
  at::ScalarType dtype;           // of the weights on disk
  std::string source_folder;      // the model that training started from
  std::optional<LoraShape> lora;  // only the adapter is saved
};

/// Saves from one process; others wait for it.
class ModelSaver {
 public:
  ModelSaver(std::string output_dir, SavedModel model, std::optional<int64_t> save_total_limit);

  /// output_dir/checkpoint-<step>: written under a temporary name and renamed. `add_files` writes
  /// what belongs beside the model into the folder it is given. Then removes the oldest of this
  /// run's checkpoints beyond save_total_limit. Returns the folder.
  std::string save_checkpoint(int64_t step, const std::vector<NamedTensor>& parameters,
                              const std::function<void(const std::string&)>& add_files);
  /// Weights, config and tokenizer into output_dir itself; weights of an earlier run go.
  void save_final(const std::vector<NamedTensor>& parameters) const;
  /// The same in two halves, for a model that several processes write: into such a folder, which is
  /// the caller's, and from there to where it belongs.
  std::string temporary_folder(std::optional<int64_t> step) const;
  std::string finish_checkpoint(int64_t step,
                                const std::function<void(const std::string&)>& add_files);
  void finish_final() const;
  const SavedModel& model() const { return model_; }
  /// Empty when this run has saved none.
  std::string last_checkpoint() const { return checkpoints_.empty() ? "" : checkpoints_.back(); }

 private:
  void write_model(const std::string& folder, const std::vector<NamedTensor>& parameters) const;

  std::string output_dir_;
  SavedModel model_;
  std::optional<int64_t> save_total_limit_;
  std::deque<std::string> checkpoints_;  // of this run, oldest first
};

}  // namespace longspan
