// The account of a run's memory, and what was measured beside it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/config/config.h"
#include "longspan/data/example.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/plan/memory_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/spec/held_parameter.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// The longest row of a run, in tokens.
struct RowLengths {
  int64_t num_tokens = 0, num_labels = 0;
  bool keeps_places = false;  // positions restart in documents, whose tokens are also counted
};

/// The longest examples that a micro-batch can hold together.
RowLengths row_lengths(const std::vector<Example>& examples, int64_t batch_size);

/// What a run's parameters take on one rank.
struct RunParameters {
  std::vector<HeldParameter> used;   // as they are used
  std::optional<HeldBytes> divided;  // between uses, where they are divided or offloaded
  HeldBytes reference;               // a second model's
};

/// The facts of a run. Needs no tensor.
MemoryFacts memory_facts(const Config& config, const ModelSpec& model, const ParallelPlan& plan,
                         const RunParameters& parameters, const RowLengths& row, bool cuda);

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
