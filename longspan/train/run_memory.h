// The memory estimate of a run, and the layers whose feed-forward tensors fit into the free memory.
#pragma once

#include <string>

#include "longspan/account/account_settings.h"
#include "longspan/account/kept_layers.h"
#include "longspan/account/run_account.h"
#include "longspan/session/workers.h"
#include "longspan/train/longest_row.h"

namespace longspan {

struct RunMemory {
  MemoryFacts facts;
  KeptLayers kept;   // the same on all ranks
  std::string text;  // sentences for users on the row and the kept layers; may be empty
};

/// `parameters`: the parameters that the run has made. Collective.
RunMemory plan_memory(const AccountSettings& config, const LongestRow& row, const RunPlan& plan,
                      const RunParameters& parameters, const Workers& workers);

}  // namespace longspan
