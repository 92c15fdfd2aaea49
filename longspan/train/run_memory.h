// The memory estimate of a run, and the layers whose feed-forward tensors fit into the free memory.
#pragma once

#include <cstdint>
#include <functional>
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

/// Bytes for the tensors of a run.
struct TensorRoom {
  /// Bytes of this process, by the device memory that lies beside its tensors.
  std::function<int64_t(int64_t beside_tensors)> of_process;
  int64_t of_machine = 0;  // host memory
};

/// Returns advice if the processes of a fast domain could hold a sharded copy of the states;
/// otherwise "". By the account without kept layers.
std::string advice_on_shards(const AccountSettings& config, const RowLengths& row,
                             const RunPlan& plan, const TensorRoom& room);

/// `parameters`: the parameters that the run has made. Collective.
RunMemory plan_memory(const AccountSettings& config, const LongestRow& row, const RunPlan& plan,
                      const RunParameters& parameters, const Workers& workers);

}  // namespace longspan
