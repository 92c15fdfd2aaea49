// The logs and results of a run: trainer_log.jsonl, trainer_state.json, *_results.json. These files
// have the keys of transformers and LLaMA-Factory; numbers are not rounded. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "longspan/registers/stage.h"

namespace longspan {

/// A JSON object of numbers, in order.
using LogEntry = std::vector<std::pair<std::string, std::variant<int64_t, double>>>;

/// Progress of a run.
struct Progress {
  int64_t step = 0, total_steps = 0;
  double epoch = 0.0;
  int64_t num_tokens = 0;           // of the data: all ranks, since the start
  int64_t num_computed_tokens = 0;  // fewer with shared prompts, which are computed once
  double elapsed_seconds = 0.0;

  double remaining_seconds() const;
  double tokens_per_second() const;
  bool shares_tokens() const { return num_computed_tokens != num_tokens; }
  double computed_tokens_per_second() const;
};

/// Constants of a run: keys of trainer_state.json, and the means to plot.
struct RunConstants {
  int64_t logging_steps = 0, eval_steps = 0, save_steps = 0;
  int64_t train_batch_size = 0, num_train_epochs = 0;
  std::span<const DrawnMean> drawn = {};  // means of the stage that trainer_log.jsonl contains
};

/// Means that a stage logs in addition to its loss, in the order of a log line.
using NamedMeans = std::vector<std::pair<std::string, double>>;

/// Contents of a step's log line. NaN values are left out.
struct LoggedStep {
  double loss = 0.0, grad_norm = 0.0, learning_rate = 0.0;
  NamedMeans means = {};    // rewards/chosen, ...
  int64_t num_skipped = 0;  // steps so far without an update; 0: not logged
};

struct EvaluationResult {
  double loss = 0.0;
  double seconds = 0.0;
  int64_t num_samples = 0, num_batches = 0;
  NamedMeans means = {};   // names without "eval_"
  bool generated = false;  // means compare generated answers; there is no loss
};

struct TrainingResult {
  double loss = 0.0;  // mean over the steps
  double seconds = 0.0;
  double num_samples = 0.0;  // in all epochs
  /// transformers' floating_point_ops: 6 x computed tokens x parameters without embeddings, with
  /// only the experts that a token uses. Comparable between both programs. Excludes the scores of
  /// attention and recomputation.
  double total_flos = 0.0;
};

/// The numbers of a log entry: of the steps since the last entry, of an evaluation, or of the whole
/// training.
using Measured = std::variant<LoggedStep, EvaluationResult, TrainingResult>;

/// Returns the entry with the keys of transformers' log_history.
LogEntry log_entry(const Progress& progress, const Measured& measured);

/// Writes into an existing folder. All members throw UserError if a file cannot be written, except
/// for a line of trainer_log.jsonl: training continues, and the line is written with the next line.
class TrainingLog {
 public:
  TrainingLog(std::string folder, const RunConstants& constants);

  /// Sets a listener that is called once, if a line of trainer_log.jsonl cannot be written.
  void warn(std::function<void(const std::string& text)> listener);
  /// Sets the intervals of log lines, evaluations and saves in trainer_state.json, in steps.
  void set_steps(int64_t logging, int64_t evaluation, int64_t saving);

  /// Appends to trainer_log.jsonl and to log_history.
  void add(const Progress& progress, const Measured& measured);

  /// Writes trainer_state.json into `folder` (output_dir or a checkpoint).
  void write_state(const std::string& folder, const Progress& progress) const;
  /// Returns the content of trainer_state.json and trainer_log.jsonl so far, by file name, for a
  /// checkpoint.
  std::map<std::string, std::string> checkpoint_files(const Progress& progress) const;
  /// Moves all later writes into that folder, and writes all of trainer_log.jsonl there. Returns
  /// once all earlier entries are on disk.
  void move_to(const std::string& folder);
  /// Restores trainer_log.jsonl and the history from checkpoint_files().
  void restore(const std::string& checkpoint);
  /// Reads the numbers of the folder's all_results.json, if there is one, so that later results are
  /// added to them.
  void restore_results();
  /// Write train_results.json and eval_results.json, and both together in all_results.json.
  void write_train_results(const Progress& progress, const TrainingResult& result);
  void write_eval_results(const Progress& progress, const EvaluationResult& result);
  /// Writes predict_results.json, and all_results.json with its numbers too.
  void write_predict_results(const EvaluationResult& result);

  const std::string& folder() const { return folder_; }
  std::span<const DrawnMean> drawn() const { return constants_.drawn; }
  const std::vector<LogEntry>& history() const { return history_; }
  /// True if trainer_log.jsonl lacks lines that could not be written.
  bool lags_behind() const { return lags_behind_; }
  /// Returns the steps and values of the history's entries that have `key`.
  std::pair<std::vector<double>, std::vector<double>> curve(const std::string& key) const;

 private:
  std::string state_text(const Progress& progress) const;
  void append_line(const std::string& line);
  void write_results(const std::string& name, const LogEntry& entry);

  std::string folder_;
  RunConstants constants_;
  std::vector<LogEntry> history_;
  std::string lines_;                                // of trainer_log.jsonl
  bool lags_behind_ = false;                         // the file lacks some of these lines
  std::function<void(const std::string&)> warning_;  // empty after its first call
  LogEntry all_results_;
};

/// Formats a step's line for the console with six significant digits: {'loss': 2.5, 'grad_norm':
/// 1.25, 'learning_rate': 5e-05, 'epoch': 0.5}.
std::string console_line(const LogEntry& entry);

/// Formats 75 as "0:01:15", as Python prints a timedelta.
std::string format_duration(double seconds);

}  // namespace longspan
