// The training loop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "longspan/liveness/run_control.h"
#include "longspan/report/events.h"
#include "longspan/report/rank_times.h"
#include "longspan/saving/resume.h"
#include "longspan/session/session.h"
#include "longspan/session/workers.h"
#include "longspan/train/run_checkpoints.h"
#include "longspan/train/run_reports.h"
#include "longspan/train/run_results.h"
#include "longspan/train/step.h"
#include "longspan/train/step_schedule.h"

namespace longspan {

class Trainer {
 public:
  /// Evaluates; returns nullopt if a rank was told to stop. Empty: there is nothing to evaluate on.
  using Evaluation = std::function<std::optional<EvaluationResult>()>;

  /// The parts of a trainer; each part must outlive the trainer.
  struct Parts {
    Workers& workers;
    const StepSchedule& schedule;
    Session& session;
    TrainingStep& step;
    Evaluation evaluate;
    RunCheckpoints& checkpoints;
    RunResults& results;
    RunReports& reports;
    const RunControl& control;
    RankTimes rank_times = RankTimes();
  };
  explicit Trainer(Parts parts);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const RunTotals& totals() const { return totals_; }

  /// Resumes from a checkpoint. Throws UserError. Collective.
  void resume(const ResumePoint& from);
  /// Runs the remaining steps and the last evaluation, and saves the model, logs and plots. If the
  /// control asks the run to stop, saves a checkpoint at the end of the step instead, and returns.
  /// Throws UserError on rank 0 and FailedElsewhere on the other ranks. Collective.
  RunEnd train();

 private:
  /// Evaluates and logs. Returns false if the evaluation was abandoned because a rank was told to
  /// stop. Collective.
  bool evaluate_now();
  /// True if the run always ends with an evaluation.
  bool evaluates_at_end() const;
  /// True if an evaluation remains between the last step and the end.
  bool ends_with_evaluation() const;
  /// Logs, evaluates and saves a checkpoint, each only if it is due. Skips the evaluation if the
  /// run is told to stop, since saving needs the time; the resumed run then evaluates. Returns true
  /// to stop now.
  bool after_step(int64_t step, const StepResult& result);
  void count(int64_t step, const StepResult& result);
  void log_step(const StepResult& result);
  /// Sends a log entry as an event. Collective.
  void log(const Progress& progress, const Measured& measured, std::vector<RankTime> ranks = {});
  /// Runs a step, and tells the heartbeat of its time.
  StepResult timed_step(int64_t step);
  /// Returns the times of the steps since the last entry, on rank 0, and names a straggler.
  std::vector<RankTime> times_of_ranks();
  /// Runs the last evaluation, and saves the model, logs and plots.
  RunEnd finish();
  /// Saves a checkpoint of the steps so far, unless this checkpoint exists.
  RunEnd stop();
  /// Waits for the checkpoint in progress, and saves nothing else.
  RunEnd interrupted();

  Parts parts_;
  Events& events_;
  RunTotals totals_;
  double last_grad_norm_;  // since the last log line; NaN: none
  StepTimes times_;
};

}  // namespace longspan
