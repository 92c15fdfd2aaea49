// The main job: all steps, and what happens between them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/plan/disk_model.h"
#include "longspan/saving/resume.h"
#include "longspan/train/step.h"

namespace longspan {

/// What the ranks sent each other while rows were trained.
struct SentBytes {
  AttentionTraffic::Report attention;
  ExpertTraffic::Report experts;
};

class Trainer {
 public:
  explicit Trainer(const TrainingJob& job);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  const StepPlan& steps() const { return steps_; }
  int64_t num_warmup_steps() const { return step_.num_warmup_steps(); }
  const Progress& progress() const { return totals_.progress; }
  /// Over all steps so far.
  double mean_loss() const;
  /// What the run will write into output_dir from here on.
  DiskFacts disk() const;
  /// Where the model is after train(): output_dir, or the run's folder in fallback_output_dir.
  /// Empty where it was not saved.
  const std::string& saved_in() const { return saved_in_; }
  /// Where its logs and results are: the same folder, or the other one where that has no room.
  const std::string& record_in() const { return record_in_; }

  /// Takes weights, optimizer, log and counts from a checkpoint. Throws UserError. Collective.
  void resume(const ResumePoint& from);
  /// Runs all steps that are left, then the last evaluation, and saves the model, logs and
  /// pictures. When the host asks for it, saves a checkpoint at the end of a step instead, and
  /// returns. Throws UserError on rank 0 and FailedElsewhere on the others. Collective.
  RunEnd train();

 private:
  /// Evaluates and logs. False: it left the evaluation, since a rank was told to stop. Collective.
  bool evaluate_now();
  /// Does the run end with an evaluation, wherever it stands?
  bool evaluates_at_end() const;
  /// Is there an evaluation between the last step and the end?
  bool ends_with_evaluation() const;
  /// Logs, evaluates and saves a checkpoint, as far as each is due. Once the run is told to stop,
  /// an evaluation would take the time that saving needs, so the resumed run does it. True: stop
  /// now.
  bool after_step(int64_t step, const StepResult& result);
  void count(int64_t step, const StepResult& result);
  void log_step(const StepResult& result);
  /// On rank 0: the log's last entry as a line on the console.
  void say_entry();
  /// Saves checkpoint-N of the steps so far. On a full disk it saves none, says so, and training
  /// goes on; what is on the disk is whole. Collective.
  void save_checkpoint();
  /// The same before the run ends: waits for room. False: it was interrupted while it waited.
  bool save_last_checkpoint();
  /// Saves the checkpoint in this folder. Throws as all_or_none.
  void save_checkpoint_into(const std::string& output_dir);
  /// Has the disk room for the checkpoint that it was too full for? Collective.
  bool has_room_again() const;
  /// The optimizer's state, with the weights themselves where saving rounds them.
  std::vector<StateSource> state_with_masters() const;
  /// Evaluates for the last time, and saves the model, logs and pictures.
  RunEnd finish();
  /// False: interrupted. Collective.
  bool save_model();
  bool save_reports(const TrainingResult& result, const SentBytes& sent);
  /// Saves a checkpoint of the steps so far, unless there is one.
  RunEnd stop();
  /// Is the model divided, so that all ranks write it together?
  bool is_divided() const;
  bool is_main() const { return world_.rank() == 0; }

  const ObjectiveContext& context_;
  const Config& config_;
  const Group& world_;
  Decoder& model_;
  Objective& objective_;
  ExampleSource& source_;
  const ExampleSet& eval_examples_;
  Host& host_;
  Notices& notices_;
  Heartbeat& heartbeat_;
  RunSaving& saving_;
  RunReports& reports_;
  TrainingLog& log_;
  Console& console_;
  const RunIdentity& identity_;
  const Launch& launch_;
  ShardedParameters* sharded_;  // null: every rank has the whole model
  TrainingStep step_;
  const StepPlan& steps_;
  ModelUpdate& update_;
  Averages& averages_;  // since the last log line
  int64_t logging_steps_, eval_steps_, save_steps_;

  RunTotals totals_;
  double last_grad_norm_;  // since the last log line; NaN: none
  int64_t last_saved_step_ = -1;
  bool checkpoint_owed_ = false;  // the disk was too full for the last one
  std::string saved_in_, record_in_;
};

}  // namespace longspan
