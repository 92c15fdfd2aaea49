// training_state.json of a checkpoint: what a run knows of itself besides weights, the optimizer
// and the log. No torch.
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

/// What decides which rows a step sees, and what is trained on them. A run resumes only where all
/// of it is the same, but for settings that may change and files that do not decide. The number of
/// processes is not part of it.
struct RunIdentity {
  std::string stage, finetuning_type;
  std::string trained;  // fingerprint of the trained parameters' names and sizes
  std::string rows;     // fingerprint of the encoded training rows
  int64_t num_rows = 0;
  int64_t rows_per_step = 0;  // of all processes, accumulated
  int64_t seed = 0;
  bool shuffled = true;
  // What strftime_now wrote into the rows (text/moment.h), which a resumed run writes again. It is
  // compared by the rows alone. Empty: the checkpoint does not say.
  std::string moment;
  // "none" or how rotary positions are stretched; empty: the checkpoint does not say.
  std::string rope_scaling;
  // The keys of the run, and the files that it depends on. Empty: the checkpoint does not say.
  Settings settings;
  RunContents contents;
};

/// What a Trainer carries from step to step. The same on every rank.
struct RunTotals {
  Progress progress;
  double loss_since_log = 0.0, loss_in_all = 0.0;
  int64_t steps_since_log = 0, steps_with_loss = 0, num_samples = 0;
  int64_t num_skipped = 0;  // steps whose update was left out
  int64_t last_evaluated_step = -1;
  EvaluationResult last_evaluation;
  bool evaluation_due = false;  // after the last step; left out because the run was told to stop

  /// Over all steps so far.
  double mean_loss() const;
};

/// Sums and counts by name, of one rank.
using RankAverages = std::map<std::string, std::pair<double, double>>;

struct TrainingState {
  std::string launch;     // which start of the program saved it
  std::string job;        // of the cluster; empty: none
  double saved_at = 0.0;  // seconds since 1970
  int world_size = 1, sequence_size = 1;
  RunIdentity identity;
  RunTotals totals;
  std::vector<RankAverages> averages;  // since the last log line, by rank
  std::string source;                  // ExampleSource::state
};

inline constexpr const char* kTrainingStateFile = "training_state.json";

/// Into `folder`. Throws UserError.
void write_training_state(const std::string& folder, const TrainingState& state);
/// Throws UserError when the file is missing or broken.
TrainingState read_training_state(const std::string& folder);

/// Throws UserError with the first key or file that differs and must not, what it was and is, and
/// the remedy. `rows_per_micro_batch`: of all processes now.
void require_same_run(const std::string& checkpoint, const RunIdentity& then,
                      const RunIdentity& now, int64_t rows_per_micro_batch);

/// What else has changed, in a line each: keys, then and now, files. `next_step`: the first that is
/// trained so, counted from 1.
std::vector<std::string> changes_since(const std::string& checkpoint, const RunIdentity& then,
                                       const RunIdentity& now, int64_t next_step);

/// One rank's averages from text, and back.
std::string text_of(const RankAverages& averages);
RankAverages averages_from(const std::string& text);

/// The sums that rank `rank` of `world_size` resumes with: its own, or, where another number of
/// ranks saved them, rank 0 has all.
RankAverages averages_for(const TrainingState& state, int rank, int world_size);

}  // namespace longspan
