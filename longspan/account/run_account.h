// Estimates a run's memory from its configuration, the model's spec, the plan and the row lengths,
// before any tensor exists. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/account/held_parameters.h"
#include "longspan/account/memory_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// The longest row of a run, in tokens.
struct RowLengths {
  int64_t num_tokens = 0, num_labels = 0;
  bool keeps_places = false;             // positions restart in documents; places are stored too
  std::vector<Document> documents = {};  // empty: the row counts as one document
  /// Patches of the rank with the most patches, and of the largest frame. Both belong to the row
  /// with the most patches, which may differ from the longest row.
  int64_t num_patches = 0, largest_frame = 0;
  int64_t row_patches = 0;  ///< patches of all ranks together
};

/// The parameters of a run on one rank.
struct RunParameters {
  std::vector<HeldParameter> used;   // in the dtypes of computation
  std::optional<HeldBytes> sharded;  // bytes between uses, if sharded or offloaded
  HeldBytes reference;               // bytes of the reference model
};

/// The hardware of one rank.
struct Hardware {
  bool cuda = false;
  int64_t num_threads = 1;     // on a CPU
  bool composes_rows = false;  // a GPU without kernels over rows
};

/// A model, and the plan of its attention.
struct PlannedModel {
  const ModelSpec& spec;
  const ParallelPlan& plan;
};

/// Returns the parameters that a run will make, if there is no adapter yet. `reference`: the model
/// of ref_model; null: the trained model. Throws UserError, as planned_parameters() does.
RunParameters planned_run_parameters(const AccountSettings& settings, const ModelSpec& model,
                                     const ParallelPlan& plan, const ModelSpec* reference = nullptr,
                                     const Hardware& hardware = {});

/// Returns the inputs of the memory estimate of a run. `model`: attended_model()
/// (session/attended_model.h). `reference`: the model of ref_model; nullopt: the reference, if any,
/// is planned as `model`.
MemoryFacts memory_facts(const AccountSettings& settings, const PlannedModel& model,
                         const RunParameters& parameters, const RowLengths& row,
                         const Hardware& hardware,
                         const std::optional<PlannedModel>& reference = std::nullopt);

/// Returns the estimate for a run before any tensor exists.
MemoryAccount planned_account(const AccountSettings& settings, const PlannedModel& model,
                              const RowLengths& row, const Hardware& hardware,
                              const std::optional<PlannedModel>& reference = std::nullopt);

}  // namespace longspan
