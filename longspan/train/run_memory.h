// The memory estimate of a run, and the layers whose feed-forward tensors fit into the free memory.
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

/// `cutoff_len`: the assumed length of documents if the program gives the rows. `parameters`: the
/// parameters that the run has made. Collective.
RunMemory plan_memory(const AccountSettings& config, int64_t cutoff_len, const RunPlan& plan,
                      const RunData& data, const RunParameters& parameters, const Workers& workers);

}  // namespace longspan
