// The memory that a run needs, and the use of free memory.
#pragma once

#include "longspan/plan/kept_layers.h"
#include "longspan/plan/run_account.h"
#include "longspan/train/run_data.h"
#include "longspan/session/workers.h"

namespace longspan {

struct Config;

struct RunMemory {
  MemoryFacts facts;
  KeptLayers kept;  // the same on all ranks
};

/// `parameters`: as made by the run. Collective.
RunMemory plan_memory(const Config& config, const RunPlan& plan, const RunData& data,
                      const RunParameters& parameters, const Workers& workers);

}  // namespace longspan
