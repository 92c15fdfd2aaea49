// The loss of a step: what the Trainer asks a stage for.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/config/preference_settings.h"
#include "longspan/models/decoder.h"
#include "longspan/report/averages.h"
#include "longspan/report/training_log.h"
#include "longspan/spec/parameter_spec.h"
#include "longspan/stages/reference.h"
#include "longspan/stages/row.h"

namespace longspan {

/// What an objective works with; all outlive it.
struct ObjectiveContext {
  const PreferenceSettings& preferences;
  const Mesh& mesh;
  const SequenceParallel& attention;
  Decoder& model;
  const ParameterTable& specs;  // of all parameters of `model`
  at::Device device;
  Reference* reference = nullptr;  // null where the loss has none
  /// Every rank takes part in every row, with an idle one where it has none (stages that gather
  /// parameters or sum gradients while rows are computed).
  bool idle_rows = false;
};

/// The Trainer calls, in each step, begin(); where looks_ahead(), look() with each of the step's
/// rows and then looked(); then loss() with each row, in the same order.
class Objective {
 public:
  virtual ~Objective() = default;

  /// Which documents of an example the row of loss() holds.
  virtual Documents documents() const { return Documents::kAll; }
  /// This row's contribution to the denominator of a step's loss: labels (pt, sft), pairs (dpo, rm)
  /// or answers (kto).
  virtual double weight(const Row& row) const = 0;
  /// Whether loss() is the whole row's on every member of its sequence group, rather than a part
  /// that is still to be summed over it.
  virtual bool replicated() const = 0;
  /// Whether losses depend on what look() finds in all rows of the step. Without, look() and
  /// looked() may be left out.
  virtual bool looks_ahead() const { return false; }
  virtual void begin() {}
  /// Sees a row of this data-parallel group before any loss is asked for. The row may be freed and
  /// made again before its loss. Gradients are off. Collective over the row's sequence group.
  virtual void look(const Row& row) { (void)row; }
  /// This data-parallel group (maybe without rows) has seen all of its rows. Collective over the
  /// world.
  virtual void looked() {}
  /// The row's contribution to the loss of the step, d(loss of the step) its gradient.
  /// `total_weight`: of the step. `row_number`: its place in what look() saw. Collective over the
  /// row's sequence group.
  virtual at::Tensor loss(const Row& row, size_t row_number, double total_weight,
                          Averages& averages) = 0;
  /// What loss() adds to `averages`, in the order of a log line.
  virtual std::vector<std::string> averages() const { return {}; }
  /// Their means, and what follows from them.
  virtual NamedMeans completed(NamedMeans means) const { return means; }
};

}  // namespace longspan
