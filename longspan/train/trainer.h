// The main job: one readable step(), and what happens between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/config/config.h"
#include "longspan/data/batch.h"
#include "longspan/data/loader.h"
#include "longspan/models/decoder.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/train/attention_traffic.h"
#include "longspan/train/console.h"
#include "longspan/train/interrupt.h"
#include "longspan/train/memory_report.h"
#include "longspan/train/model_update.h"
#include "longspan/train/saving.h"
#include "longspan/train/stage.h"
#include "longspan/train/step_plan.h"
#include "longspan/train/training_log.h"

namespace longspan {

/// What one optimizer step did. The same on every rank.
struct StepResult {
  double loss = 0.0;       // the stage's mean over the global batch
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  int64_t num_tokens = 0, num_samples = 0;  // of the global batch
  bool interrupted = false;                 // abandoned; nothing was updated
};

/// What a Trainer works on; all outlive it. Examples are the same on every rank.
struct TrainingJob {
  const StageContext& context;
  Stage& stage;
  const std::vector<Example>& train_examples;
  const std::vector<Example>& eval_examples;
  const InterruptWatch& interrupts;
  AttentionTraffic& traffic;
  MemoryReport& memory;
  ShardedParameters* sharded = nullptr;  // where the model's parameters come from, if from there
};

class Trainer {
 public:
  /// `saver`, `log` and `console` are used by rank 0 only.
  Trainer(const TrainingJob& job, ModelSaver& saver, TrainingLog& log, Console& console);

  const StepPlan& steps() const { return steps_; }
  int64_t num_warmup_steps() const { return num_warmup_steps_; }
  const Progress& progress() const { return progress_; }

  /// All steps; then the last evaluation, the model, logs and pictures into output_dir. False when
  /// it was interrupted. Throws UserError on rank 0 and FailedElsewhere on the others. Collective.
  bool train();
  /// Optimizer step number `step` (0-based).
  StepResult step(int64_t step);

 private:
  /// The evaluation set's loss now, logged. Collective.
  void evaluate_now();
  std::vector<Row> rows_of(const StepPlace& place) const;
  /// Another for each micro-batch, whatever the number of processes that share it.
  uint64_t dropout_seed(int64_t step, size_t row_number) const;
  void require_finite(const StepResult& result, int64_t step,
                      const std::vector<at::Tensor>& contributions) const;
  void after_step(int64_t step, const StepResult& result);
  void finish();
  /// Rank 0 finishes what is saved, after all have written their part where none holds the whole
  /// model. Collective.
  void write_together(std::optional<int64_t> step, const std::function<void()>& finish);
  bool no_rank_holds_the_model() const;
  bool is_main() const { return job_.context.mesh.world.rank() == 0; }

  TrainingJob job_;
  ModelSaver& saver_;
  TrainingLog& log_;
  Console& console_;
  Loader loader_;
  StepPlan steps_;
  int64_t num_warmup_steps_;
  ModelUpdate update_;

  Progress progress_;
  double loss_since_log_ = 0.0, loss_in_all_ = 0.0;
  Averages averages_;  // since the last log line
  int64_t steps_since_log_ = 0, samples_in_all_ = 0;
  int64_t last_evaluated_step_ = -1;
  EvaluationResult last_evaluation_;
};

/// `longspan train` in one worker process, start to end: reads data and model, trains, evaluates,
/// saves. Returns the exit status (130 after SIGINT). Throws UserError on rank 0 for what the user
/// can mend; the other ranks then return 1, so that it is said once.
int run_training(const Config& config, const Rendezvous& where);

}  // namespace longspan
