// Arithmetic of epochs, optimizer steps and micro-batches, as in transformers' Trainer. No torch.
#pragma once

#include <cstdint>
#include <optional>

namespace longspan {

/// An optimizer step: micro-batches [begin_batch, end_batch) of an epoch.
struct StepPlace {
  int64_t epoch, begin_batch, end_batch;
  double epochs_done;  // epochs finished after the step, as a fraction
};

/// Returns the number of steps for a key's value `given`. A value below 1 is a fraction of all
/// steps, rounded up. Throws UserError for an invalid number of steps.
int64_t steps_of(double given, int64_t total_steps);

/// Returns num_train_epochs rounded up. Throws UserError for an invalid number.
int64_t epochs_of(double num_train_epochs);

/// Division of a run into optimizer steps. The last step of an epoch may have fewer micro-batches;
/// no step spans two epochs.
struct StepPlan {
  int64_t batches_per_epoch = 0;  // global micro-batches
  int64_t accumulation = 1;       // micro-batches per step
  int64_t steps_per_epoch = 0;
  int64_t total_steps = 0;

  /// max_steps > 0 overrides num_train_epochs, which may be fractional. If the number of batches
  /// per epoch is unknown, all steps are one epoch. Throws UserError if the number of batches is
  /// unknown and max_steps is not positive, or if the number of steps overflows.
  static StepPlan make(std::optional<int64_t> batches_per_epoch, int64_t accumulation,
                       double num_train_epochs, int64_t max_steps);
  /// step: 0-based.
  StepPlace place(int64_t step) const;
  bool ends_epoch(int64_t step) const { return (step + 1) % steps_per_epoch == 0; }
};

}  // namespace longspan
