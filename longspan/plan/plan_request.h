// Makes the request for a plan from a configuration. No torch.
#pragma once

#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct DataSettings;
struct MemorySettings;
struct ModelSettings;
struct OptimizationSettings;
struct ParallelSettings;

/// The sections of the configuration that a request reads.
struct RequestSettings {
  const ModelSettings& model;
  const DataSettings& data;
  const OptimizationSettings& optimization;
  const MemorySettings& memory;
  const ParallelSettings& parallel;
};

/// Returns the request before data are read. The row is assumed to hold per_device_train_batch_size
/// documents of cutoff_len tokens. `model`: attended_model() (session/attended_model.h).
/// `ranks_per_machine`: processes on this machine. Throws UserError for an unknown mode.
PlanRequest plan_request(const RequestSettings& settings, const ModelSpec& model, int world_size,
                         int ranks_per_machine, bool cuda);

}  // namespace longspan
