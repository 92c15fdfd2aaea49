// The estimate of a run's memory, and the measured peaks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "longspan/account/memory_model.h"
#include "longspan/account/run_account.h"
#include "longspan/comm/group.h"
#include "longspan/data/example_set.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/memory/peak_meter.h"

namespace longspan {

/// Returns the sizes of the largest micro-batch that the examples can form. If the documents of an
/// example are in separate rows, returns the sizes of the longest row. `sequence_size`: ranks that
/// share a row, and its pictures.
RowLengths row_lengths(const ExampleSet& examples, int64_t batch_size, RowKind kind,
                       int sequence_size = 1);

/// Returns a warning if the ranks of a machine need more memory than the machine has; otherwise
/// empty.
std::string warning_of_memory(int64_t bytes_of_rank, int ranks_here, const MachineMemory& machine);

class MemoryReport {
 public:
  /// `meter`: null if nothing is measured. `remark`: a sentence on the estimate; may be empty.
  MemoryReport(PeakMeter* meter, const MemoryFacts& facts, std::string remark = {})
      : meter_(meter), facts_(facts), account_(account_of(facts)), remark_(std::move(remark)) {}

  /// Returns a rank's estimate, with a warning if the ranks of this machine need more host memory
  /// than the machine has. Starts to measure the peak.
  std::string begin(int ranks_here, bool cuda);
  /// Returns, on rank 0, every rank's peaks since begin(), next to the estimate. Collective.
  std::string end(const Group& world);
  /// Returns each rank's peaks after end(); empty if nothing is measured.
  const std::vector<MeasuredPeak>& measured() const { return measured_; }
  /// Writes memory.json: facts, estimate and, after end(), the measured peaks. Throws UserError.
  void write(const std::string& folder) const;

 private:
  PeakMeter* meter_;
  MemoryFacts facts_;
  MemoryAccount account_;
  std::string remark_;
  std::vector<MeasuredPeak> measured_;
};

}  // namespace longspan
