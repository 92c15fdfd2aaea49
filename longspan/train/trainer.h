// The main job: one readable step(), and what happens between steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/comm/heartbeat.h"
#include "longspan/comm/mesh.h"
#include "longspan/comm/notices.h"
#include "longspan/config/config.h"
#include "longspan/data/batch.h"
#include "longspan/data/loader.h"
#include "longspan/liveness/interrupt.h"
#include "longspan/models/decoder.h"
#include "longspan/plan/step_plan.h"
#include "longspan/report/attention_traffic.h"
#include "longspan/report/console.h"
#include "longspan/report/memory_report.h"
#include "longspan/report/training_log.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/saving.h"
#include "longspan/saving/training_state.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/stages/objective.h"
#include "longspan/train/model_update.h"

namespace longspan {

/// What one optimizer step did. The same on every rank.
struct StepResult {
  double loss = 0.0;       // the objective's mean over the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  int64_t num_tokens = 0, num_samples = 0;  // of the global batch, as the data holds it
  int64_t num_computed_tokens = 0;          // a shared prompt counts once
  bool interrupted = false;                 // abandoned; nothing was updated
  bool skipped = false;                     // loss or gradients were not finite: no update
  bool stops = false;                       // the last one: a rank was told to save and end
};

/// What a Trainer works on; all outlive it. Examples are the same on every rank.
struct TrainingJob {
  const ObjectiveContext& context;
  Objective& objective;
  const std::vector<Example>& train_examples;
  const std::vector<Example>& eval_examples;
  const InterruptWatch& interrupts;
  PatientSaver& patient_saver;
  AttentionTraffic& traffic;
  MemoryReport& memory;
  Heartbeat& heartbeat;
  Notices& notices;
  const RunIdentity& identity;
  const Launch& launch;
  ShardedParameters* sharded = nullptr;  // where the model's parameters come from, if from there
};

enum class TrainingEnd { kDone, kInterrupted, kStopped };

class Trainer {
 public:
  /// `log` and `console` are used by rank 0 only.
  Trainer(const TrainingJob& job, const ModelSaver& saver, Checkpoints& checkpoints,
          TrainingLog& log, Console& console);

  const StepPlan& steps() const { return steps_; }
  int64_t num_warmup_steps() const { return num_warmup_steps_; }
  const Progress& progress() const { return totals_.progress; }
  /// What the run will write into output_dir from here on.
  DiskFacts disk() const;
  /// Where the model is after train(): output_dir, or the run's folder in fallback_output_dir.
  /// Empty where it was not saved.
  const std::string& saved_in() const { return saved_in_; }

  /// Takes weights, optimizer, log and counts from a checkpoint. Throws UserError. Collective.
  void resume(const ResumePoint& from);
  /// Runs all steps that are left, then the last evaluation, and saves the model, logs and
  /// pictures. When a signal asks for it, saves a checkpoint at the end of a step instead, and
  /// returns. Throws UserError on rank 0 and FailedElsewhere on the others. Collective.
  TrainingEnd train();
  /// Optimizer step number `step` (0-based).
  StepResult step(int64_t step);

 private:
  /// The evaluation set's loss now, logged. False: left, as a rank was told to stop. Collective.
  bool evaluate_now();
  /// Is there an evaluation between the last step and the end?
  bool ends_with_evaluation() const;
  std::vector<Row> rows_of(const StepPlace& place) const;
  /// Another for each micro-batch, whatever the number of processes that share it.
  uint64_t dropout_seed(int64_t step, size_t row_number) const;
  /// The loss or the gradient norm is not finite: says where it comes from, and stops the run or
  /// leaves the step's update out, as on_nonfinite has it. `own_losses`: of the rows of this
  /// data-parallel group, each a mean over its own labels (pairs, answers). Collective.
  void leave_out(StepResult& result, int64_t step, const std::vector<double>& own_losses);
  /// Rows whose loss is not finite; or parameters whose gradient is not, and the rows with the
  /// largest losses. Collective.
  std::string source_of_nonfinite(int64_t step, const std::vector<double>& own_losses,
                                  bool in_loss) const;
  /// Log, evaluation and checkpoint, as far as they are due. Once told to stop, an evaluation would
  /// take the time that saving needs: it is left to the run that goes on. True: stop now.
  bool after_step(int64_t step, const StepResult& result);
  /// checkpoint-N of the steps so far. On a full disk there is none, which is said, and training
  /// goes on: what is on the disk is whole. Collective.
  void save_checkpoint();
  /// The same before the run ends: it waits for room. False: it was interrupted while it waited.
  bool save_last_checkpoint();
  /// Into this folder. Throws as all_or_none.
  void save_checkpoint_into(const std::string& output_dir);
  /// Of one that the disk was too full for: may it be tried again? Collective.
  bool has_room_again() const;
  /// The optimizer's state, with the weights themselves where saving rounds them.
  std::vector<StateSource> state_with_masters() const;
  /// The last evaluation, the model, logs and pictures.
  TrainingEnd finish();
  /// A checkpoint of the steps so far, unless there is one.
  TrainingEnd stop();
  /// No rank holds the whole model; all write it together.
  bool is_divided() const;
  bool is_main() const { return job_.context.mesh.world.rank() == 0; }

  TrainingJob job_;
  const ModelSaver& saver_;
  Checkpoints& checkpoints_;
  TrainingLog& log_;
  Console& console_;
  Loader loader_;
  StepPlan steps_;
  int64_t num_warmup_steps_, logging_steps_, eval_steps_, save_steps_;
  ModelUpdate update_;

  RunTotals totals_;
  Averages averages_;      // since the last log line
  double last_grad_norm_;  // since then; NaN: none
  int64_t skipped_in_a_row_ = 0;
  int64_t last_saved_step_ = -1;
  bool checkpoint_owed_ = false;  // the disk was too full for the last one
  std::string saved_in_;
};

/// `longspan train` in one worker process, start to end: reads data and model, trains, evaluates,
/// saves. Returns the exit status (130 after SIGINT, 0 after SIGTERM or SIGUSR1 and a save). Throws
/// UserError on rank 0 for what the user can mend; the other ranks then return 1, so that it is
/// said once.
int run_training(const Config& config, const Rendezvous& where);

}  // namespace longspan
