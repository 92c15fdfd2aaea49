// The memory that a run needs, and the use of free memory.
#pragma once

#include <cstdint>

#include "longspan/account/account_settings.h"
#include "longspan/account/kept_layers.h"
#include "longspan/account/run_account.h"
#include "longspan/session/workers.h"
#include "longspan/train/run_data.h"

namespace longspan {

struct RunMemory {
  MemoryFacts facts;
  KeptLayers kept;  // the same on all ranks
};

/// `cutoff_len`: tokens of a document, where rows are the caller's. `parameters`: as made by the
/// run. Collective.
RunMemory plan_memory(const AccountSettings& config, int64_t cutoff_len, const RunPlan& plan,
                      const RunData& data, const RunParameters& parameters, const Workers& workers);

}  // namespace longspan
