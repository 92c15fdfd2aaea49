// The main job: one readable step(), and what happens between steps.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/config/config.h"
#include "longspan/data/batch.h"
#include "longspan/data/loader.h"
#include "longspan/models/decoder.h"
#include "longspan/optim/adamw.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/train/attention_traffic.h"
#include "longspan/train/console.h"
#include "longspan/train/interrupt.h"
#include "longspan/train/saving.h"
#include "longspan/train/step_plan.h"
#include "longspan/train/training_log.h"

namespace longspan {

/// What one optimizer step did. The same on every rank.
struct StepResult {
  double loss = 0.0;       // sum of -log p over the labels of the global batch / their number
  double grad_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  int64_t num_tokens = 0, num_labels = 0, num_samples = 0;  // of the global batch
  bool interrupted = false;                                 // abandoned; nothing was updated
};

/// What a Trainer works on; all outlive it. Samples are the same on every rank.
struct TrainingJob {
  const Config& config;
  const Mesh& mesh;
  const SequenceParallel& attention;
  Decoder& model;
  at::Device device;
  const std::vector<Sample>& train_samples;
  const std::vector<Sample>& eval_samples;
  const InterruptWatch& interrupts;
  AttentionTraffic& traffic;
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
  std::vector<Batch> rows_of(const StepPlace& place) const;
  void require_finite(const StepResult& result, int64_t step,
                      const std::vector<at::Tensor>& contributions) const;
  void after_step(int64_t step, const StepResult& result);
  void finish();
  bool is_main() const { return job_.mesh.world.rank() == 0; }

  TrainingJob job_;
  ModelSaver& saver_;
  TrainingLog& log_;
  Console& console_;
  Loader loader_;
  StepPlan steps_;
  int64_t num_warmup_steps_;
  AdamW optimizer_;

  Progress progress_;
  double loss_since_log_ = 0.0, loss_in_all_ = 0.0;
  int64_t steps_since_log_ = 0, samples_in_all_ = 0;
  int64_t last_evaluated_step_ = -1;
  EvaluationResult last_evaluation_;
};

/// `longspan train` in one worker process, start to end: reads data and model, trains, evaluates,
/// saves. Returns the exit status (130 after SIGINT). Throws UserError on rank 0 for what the user
/// can mend; the other ranks then return 1, so that it is said once.
int run_training(const Config& config, const Rendezvous& where);

}  // namespace longspan
