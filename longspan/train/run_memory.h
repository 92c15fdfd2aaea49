// What a run will need of memory, and what it does with memory that is left.
#pragma once

#include "longspan/plan/kept_layers.h"
#include "longspan/plan/run_account.h"
#include "longspan/train/run_data.h"
#include "longspan/train/workers.h"

namespace longspan {

struct Config;

struct RunMemory {
  MemoryFacts facts;
  KeptLayers kept;  // the same on all ranks
};

/// `parameters`: those that the run has made. Collective.
RunMemory plan_memory(const Config& config, const RunPlan& plan, const RunData& data,
                      const RunParameters& parameters, const Workers& workers);

}  // namespace longspan
