// The account of a run's memory, and what was measured beside it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/data/example_set.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/plan/memory_model.h"
#include "longspan/plan/run_account.h"

namespace longspan {

/// The longest examples that a micro-batch can hold together; of documents that are in rows of
/// their own, those of the longer rows.
RowLengths row_lengths(const ExampleSet& examples, int64_t batch_size, RowKind kind);

/// A warning where the ranks of a machine need more memory than it has; else empty.
std::string warning_of_memory(int64_t bytes_of_rank, int ranks_here, const MachineMemory& machine);

class MemoryReport {
 public:
  /// `meter`: null where nothing is measured.
  /// `remark`: a sentence on the account; empty: none.
  MemoryReport(PeakMeter* meter, const MemoryFacts& facts, std::string remark = {})
      : meter_(meter), facts_(facts), account_(account_of(facts)), remark_(std::move(remark)) {}

  /// Says what a rank will need, with a warning where the ranks of this machine need more host
  /// memory than it has. Starts to measure the peak.
  std::string begin(int ranks_here, bool cuda);
  /// Every rank's peaks since then, beside the account, on rank 0. Collective.
  std::string end(const Group& world);
  /// memory.json: facts, account and, after end(), what was measured. Throws UserError.
  void write(const std::string& folder) const;

 private:
  PeakMeter* meter_;
  MemoryFacts facts_;
  MemoryAccount account_;
  std::string remark_;
  std::vector<MeasuredPeak> measured_;
};

}  // namespace longspan
