// The loss of a step: the interface between the Trainer and a stage.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/models/decoder.h"
#include "longspan/report/averages.h"
#include "longspan/report/training_log.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/spec/parameter_spec.h"
#include "longspan/stages/reference.h"
#include "longspan/stages/row.h"

namespace longspan {

/// Inputs of an objective; all inputs must outlive the objective.
struct ObjectiveContext {
  const PreferenceSettings& preferences;
  const Mesh& mesh;
  SequenceParallel& attention;  // of rows without ranks of their own
  Decoder& model;
  const ParameterTable& specs;  // all parameters of `model`
  at::Device device;
  Reference* reference = nullptr;  // null if the loss has no reference
  /// Every rank takes part in every row, if necessary with an idle row. For runs that gather
  /// parameters or reduce gradients while rows are computed.
  bool idle_rows = false;
};

/// In each step the Trainer calls begin(); if precomputes(), precompute() with each of the step's
/// rows and then end_precompute(); then loss() with each row, in the same order.
class Objective {
 public:
  virtual ~Objective() = default;

  /// Returns which documents of an example the row of loss() holds.
  virtual Documents documents() const { return Documents::kAll; }
  /// Returns this row's contribution to the denominator of a step's loss: labels (pt, sft), pairs
  /// (dpo, rm) or answers (kto).
  virtual double weight(const Row& row) const = 0;
  /// True if loss() returns the whole row's loss on every member of the row's sequence group; false
  /// if loss() returns a part that must still be summed over the group.
  virtual bool replicated() const = 0;
  /// True if losses depend on the results of precompute() over all rows of the step. Otherwise
  /// precompute() and end_precompute() may be skipped.
  virtual bool precomputes() const { return false; }
  virtual void begin() {}
  /// Processes a row of this data-parallel group before any loss of the step. The row may be freed
  /// and made again before its loss. Gradients are off. Collective over the row's sequence group.
  virtual void precompute(const Row& row) { (void)row; }
  /// Called after all rows of this data-parallel group (possibly none). Collective over the world.
  virtual void end_precompute() {}
  /// Returns the row's contribution to the loss of the step; its gradient is the gradient of the
  /// step's loss. `total_weight`: of the step. `row_number`: index of the row among the
  /// precompute() calls. Collective over the row's sequence group.
  virtual at::Tensor loss(const Row& row, size_t row_number, double total_weight,
                          Averages& averages) = 0;
  /// Returns the values that later steps read, for a checkpoint; the same on every rank. Empty:
  /// steps do not depend on earlier steps. Collective.
  virtual std::string state() const { return ""; }
  /// Continues from a checkpoint's state, unless the state is empty. Throws UserError.
  virtual void resume(const std::string& state) { (void)state; }
  /// Returns the names that loss() adds to `averages`, in the order of a log line.
  virtual std::vector<std::string> averages() const { return {}; }
  /// Returns the means and values derived from them.
  virtual NamedMeans completed(NamedMeans means) const { return means; }
};

}  // namespace longspan
