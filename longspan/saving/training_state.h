// training_state.json of a checkpoint: the state of a run besides weights, optimizer and log. No
// torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "longspan/config/training_settings.h"
#include "longspan/report/training_log.h"
#include "longspan/saving/run_contents.h"

namespace longspan {

/// Begins the fingerprint of rows that are read during training: of their keys, not of their
/// tokens.
inline constexpr const char* kStreamedRows = "streamed ";
/// Begins the fingerprint of rows that were not all encoded yet: of their texts, and of the keys
/// that encode them.
inline constexpr const char* kTextsOfRows = "texts ";

/// The properties that determine the rows of each step, and the parameters that are trained on
/// these rows. A run resumes only if these properties are unchanged, except for settings that may
/// change and files whose changes do not make another run (RunFile::decides,
/// ChangedFile::makes_rows). The number of processes is not among these properties.
struct RunIdentity {
  std::string stage, finetuning_type;
  std::string trained;  // fingerprint of the trained parameters' names and sizes
  std::string rows;     // fingerprint of the encoded training rows; empty: rows of the caller
  int64_t num_rows = 0;
  int64_t rows_per_step = 0;  // over all processes, with accumulation
  int64_t seed = 0;
  bool shuffled = true;
  // The time that strftime_now put into the rows (text/local_time.h), which a resumed run uses
  // again. The time itself is not compared: another time is refused only if it changes the rows.
  // Empty: unknown.
  std::string template_time;
  // "none", or how rotary positions are stretched; empty: unknown.
  std::string rope_scaling;
  // How model_name_or_path stores its weights, if these decide; empty: they do not, or unknown.
  std::string stored_numbers = {};
  // The run's keys and the files that it depends on. Empty: unknown.
  Settings settings;
  RunContents contents;
};

/// A Trainer's totals across steps; the same on every rank.
struct RunTotals {
  Progress progress;
  double loss_since_log = 0.0, loss_in_all = 0.0;
  int64_t steps_since_log = 0, steps_with_loss = 0, num_samples = 0;
  int64_t num_skipped = 0;  // steps without an update
  int64_t last_evaluated_step = -1;
  EvaluationResult last_evaluation;
  bool evaluation_due = false;  // told to stop before the evaluation after the last step

  /// Mean over all steps so far.
  double mean_loss() const;
};

/// One rank's sums and counts by name.
using RankAverages = std::map<std::string, std::pair<double, double>>;

struct TrainingState {
  std::string launch;     // Launch::id of the run that saved this state
  std::string job;        // cluster job; empty: none
  double saved_at = 0.0;  // seconds since 1970
  int world_size = 1, sequence_size = 1;
  RunIdentity identity;
  RunTotals totals;
  std::vector<RankAverages> averages;  // by rank, since the last log line
  std::string source;                  // ExampleSource::state
  std::string objective = {};          // Objective::state
};

inline constexpr const char* kTrainingStateFile = "training_state.json";

/// Writes training_state.json into `folder`. Throws UserError.
void write_training_state(const std::string& folder, const TrainingState& state);
/// Throws UserError if the file is missing or broken.
TrainingState read_training_state(const std::string& folder);

/// Throws UserError for the first key or file with a forbidden change. The message has both values
/// and the remedy. `rows_per_micro_batch`: over all processes now.
void require_same_run(const std::string& checkpoint, const RunIdentity& then,
                      const RunIdentity& now, int64_t rows_per_micro_batch);

/// Returns a line for each change that require_same_run accepts: of a key (old and new value) or of
/// a file. `next_step`: the first affected step, counted from 1.
std::vector<std::string> changes_since(const std::string& checkpoint, const RunIdentity& then,
                                       const RunIdentity& now, int64_t next_step);

/// Returns a digest of the identity; empty if the contents of a file are unknown, as with
/// save_only_model.
std::string digest_of(const RunIdentity& identity);

/// Convert one rank's averages to and from text.
std::string text_of(const RankAverages& averages);
RankAverages averages_from(const std::string& text);

/// Returns the sums with which rank `rank` of `world_size` resumes: the rank's own sums or, if the
/// number of ranks has changed, all sums on rank 0.
RankAverages averages_for(const TrainingState& state, int rank, int world_size);

}  // namespace longspan
