// The logs and results of a run: trainer_log.jsonl, trainer_state.json, *_results.json. They have
// the keys of transformers and LLaMA-Factory, and numbers are not rounded. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "longspan/stages/stage.h"

namespace longspan {

/// One JSON object with numbers, in order.
using LogEntry = std::vector<std::pair<std::string, std::variant<int64_t, double>>>;

/// Where a run stands.
struct Progress {
  int64_t step = 0, total_steps = 0;
  double epoch = 0.0;
  int64_t num_tokens = 0;           // of all ranks, since the start, as the data holds them
  int64_t num_computed_tokens = 0;  // fewer where prompts are shared: each counts once
  double elapsed_seconds = 0.0;

  double remaining_seconds() const;
  double tokens_per_second() const;
  bool shares_tokens() const { return num_computed_tokens != num_tokens; }
  double computed_tokens_per_second() const;
};

/// What does not change in a run: keys of trainer_state.json, and the means that are drawn.
struct RunConstants {
  int64_t logging_steps = 0, eval_steps = 0, save_steps = 0;
  int64_t train_batch_size = 0, num_train_epochs = 0;
  std::span<const DrawnMean> drawn = {};  // of the stage: what trainer_log.jsonl has of its means
};

/// Means that a stage logs beside its loss, in the order of a log line.
using NamedMeans = std::vector<std::pair<std::string, double>>;

/// What a step's log line says. What is NaN is left out.
struct LoggedStep {
  double loss = 0.0, grad_norm = 0.0, learning_rate = 0.0;
  NamedMeans means = {};    // rewards/chosen, ...
  int64_t num_skipped = 0;  // steps so far whose update was left out; 0: not told
};

struct EvaluationResult {
  double loss = 0.0;
  double seconds = 0.0;
  int64_t num_samples = 0, num_batches = 0;
  NamedMeans means = {};  // without "eval_"
};

struct TrainingResult {
  double loss = 0.0;  // mean over the steps
  double seconds = 0.0;
  double num_samples = 0.0;  // fed to the model, all epochs
  /// As transformers counts (floating_point_ops): 6 x computed tokens x parameters without
  /// embeddings, of experts those that a token goes through. So the numbers of both programs can be
  /// compared. Attention's own work and recomputation are not in it.
  double total_flos = 0.0;
};

/// Writes into a folder that exists. All members throw UserError when a file cannot be written.
/// Training does not stop for a line of trainer_log.jsonl: it is written with the next one.
class TrainingLog {
 public:
  TrainingLog(std::string folder, const RunConstants& constants);

  /// From now on each entry of log_history is also told to `listener`.
  void tell(std::function<void(const LogEntry& entry)> listener);
  /// Is told, once, why a line of trainer_log.jsonl could not be written.
  void warn(std::function<void(const std::string& text)> listener);
  /// What trainer_state.json says of the steps between log lines, evaluations and saves.
  void set_steps(int64_t logging, int64_t evaluation, int64_t saving);

  /// These append to trainer_log.jsonl and to log_history.
  void add_step(const Progress& progress, const LoggedStep& step);
  void add_evaluation(const Progress& progress, const EvaluationResult& result);
  void add_end(const Progress& progress, const TrainingResult& result);

  /// trainer_state.json into `folder` (output_dir or a checkpoint).
  void write_state(const std::string& folder, const Progress& progress) const;
  /// trainer_state.json, and trainer_log.jsonl as far as it is written, into a checkpoint.
  void write_checkpoint(const std::string& folder, const Progress& progress) const;
  /// From now on everything goes into that folder, trainer_log.jsonl from its beginning. What was
  /// logged until now has reached the disk.
  void move_to(const std::string& folder);
  /// Reads what write_checkpoint has written: trainer_log.jsonl and the history are then as they
  /// were.
  void restore(const std::string& checkpoint);
  /// train_results.json, eval_results.json and both together in all_results.json.
  void write_train_results(const Progress& progress, const TrainingResult& result);
  void write_eval_results(const Progress& progress, const EvaluationResult& result);

  const std::string& folder() const { return folder_; }
  std::span<const DrawnMean> drawn() const { return constants_.drawn; }
  const std::vector<LogEntry>& history() const { return history_; }
  /// Does trainer_log.jsonl lack lines that the disk did not take?
  bool lags_behind() const { return lags_behind_; }
  /// (step, value) of the history's entries that have `key`.
  std::pair<std::vector<double>, std::vector<double>> curve(const std::string& key) const;

 private:
  /// Into the history, and `line` into trainer_log.jsonl.
  void add(LogEntry entry, const std::string& line);
  void append_line(const std::string& line);
  void write_results(const std::string& name, const LogEntry& entry);

  std::string folder_;
  RunConstants constants_;
  std::vector<LogEntry> history_;
  std::string lines_;         // of trainer_log.jsonl
  bool lags_behind_ = false;  // the file lacks some of them
  std::function<void(const LogEntry&)> listener_;
  std::function<void(const std::string&)> warning_;  // empty once it has been used
  LogEntry all_results_;
};

/// The step's line for the console, numbers with six significant digits: {'loss': 2.5,
/// 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.5}.
std::string console_line(const LogEntry& entry);

/// 75 -> "0:01:15", as Python prints a timedelta.
std::string format_duration(double seconds);

}  // namespace longspan
