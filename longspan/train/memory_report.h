// The account of a run's memory, and what was measured beside it.
#pragma once

#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/config/config.h"
#include "longspan/data/example.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/models/model_config.h"
#include "longspan/plan/memory_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/train/trained_model.h"

namespace longspan {

/// The facts of a run. The longest row is the longest examples of the set in one micro-batch.
/// `reference` may be null.
MemoryFacts memory_facts(const Config& config, const ModelConfig& model, const ParallelPlan& plan,
                         const TrainedModel& trained, const std::vector<Example>& examples,
                         const Reference* reference, bool cuda);

/// A warning where the ranks of a machine need more memory than it has; else empty.
std::string warning_of_memory(int64_t bytes_of_rank, int ranks_here, const MachineMemory& machine);

class MemoryReport {
 public:
  MemoryReport(PeakMeter& meter, const MemoryFacts& facts)
      : meter_(meter), facts_(facts), account_(account_of(facts)) {}

  /// Says what a rank will need, with a warning where the ranks of this machine need more host
  /// memory than it has. Starts to measure the peak.
  std::string begin(int ranks_here, bool cuda);
  /// Every rank's peaks since then, beside the account, on rank 0. Collective.
  std::string end(const Group& world);
  /// memory.json: facts, account and, after end(), what was measured. Throws UserError.
  void write(const std::string& folder) const;

 private:
  PeakMeter& meter_;
  MemoryFacts facts_;
  MemoryAccount account_;
  std::vector<MeasuredPeak> measured_;
};

}  // namespace longspan
