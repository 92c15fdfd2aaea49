// Arithmetic of epochs, optimizer steps and micro-batches, as transformers' Trainer has it. No
// torch.
#pragma once

#include <cstdint>
#include <optional>

namespace longspan {

/// Where an optimizer step lies: micro-batches [begin_batch, end_batch) of an epoch.
struct StepPlace {
  int64_t epoch, begin_batch, end_batch;
  double epochs_done;  // after the step
};

/// A key that counts steps: a number below 1 is a share of all steps, rounded up. Throws UserError
/// for what is no number of steps.
int64_t steps_of(double given, int64_t total_steps);

/// Epochs that are begun. Throws UserError as well.
int64_t epochs_of(double num_train_epochs);

/// How a run is cut into optimizer steps. The last step of an epoch may have fewer micro-batches
/// than the others; no step spans two epochs.
struct StepPlan {
  int64_t batches_per_epoch = 0;  // global micro-batches
  int64_t accumulation = 1;       // micro-batches of a step
  int64_t steps_per_epoch = 0;
  int64_t total_steps = 0;

  /// max_steps > 0 overrides num_train_epochs, which may be fractional. Where nobody knows how many
  /// batches an epoch has, all steps are one epoch. Throws UserError where that has no max_steps,
  /// and where the keys make more steps than can be counted.
  static StepPlan make(std::optional<int64_t> batches_per_epoch, int64_t accumulation,
                       double num_train_epochs, int64_t max_steps);
  /// step: 0-based.
  StepPlace place(int64_t step) const;
  bool ends_epoch(int64_t step) const { return (step + 1) % steps_per_epoch == 0; }
};

}  // namespace longspan
