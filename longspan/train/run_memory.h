// The memory that a run needs, and the use of free memory.
#pragma once

#include "longspan/account/kept_layers.h"
#include "longspan/account/run_account.h"
#include "longspan/session/workers.h"
#include "longspan/train/run_data.h"

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
