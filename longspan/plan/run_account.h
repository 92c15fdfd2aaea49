// A run's memory by its configuration, the model's spec, the plan and the lengths of rows: before
// there is a tensor. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/plan/held_parameters.h"
#include "longspan/plan/memory_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

/// The longest row of a run, in tokens.
struct RowLengths {
  int64_t num_tokens = 0, num_labels = 0;
  bool keeps_places = false;  // positions restart in documents, whose tokens are also counted
  std::vector<int64_t> documents = {};  // their lengths; none: it may be one
};

/// What a run's parameters take on one rank.
struct RunParameters {
  std::vector<HeldParameter> used;   // as they are used
  std::optional<HeldBytes> divided;  // between uses, where they are divided or offloaded
  HeldBytes reference;               // a second model's
};

/// What one rank computes with.
struct Computer {
  bool cuda = false;
  int64_t num_threads = 1;  // on a CPU
};

/// The parameters that a run will have made, where no adapter is there yet. `reference`: the model
/// of ref_model; null: the trained one. Throws UserError as planned_parameters.
RunParameters planned_run_parameters(const Config& config, const ModelSpec& model,
                                     const ParallelPlan& plan, const ModelSpec* reference = nullptr,
                                     const Computer& computer = {});

/// The facts of a run. `model`: as its attentions see it (train/attended_model.h).
MemoryFacts memory_facts(const Config& config, const ModelSpec& model, const ParallelPlan& plan,
                         const RunParameters& parameters, const RowLengths& row,
                         const Computer& computer);

/// The account of a run that has made nothing yet.
MemoryAccount planned_account(const Config& config, const ModelSpec& model,
                              const ParallelPlan& plan, const RowLengths& row,
                              const Computer& computer, const ModelSpec* reference = nullptr);

}  // namespace longspan
