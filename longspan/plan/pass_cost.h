// Cost of a forward or backward pass of attention on the links and cores of a sequence group.
// Methods compute their estimates from PassCost. No torch.
#pragma once

#include <cstdint>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// One sequence group: ranks base, base + 1, ...; each machine holds cluster.ranks_per_machine
/// ranks.
class PassCost {
 public:
  const ParallelPlan& plan;
  const AttentionShape& shape;
  const Packing& padded;
  const ClusterModel& cluster;
  int base;
  bool backward;

  /// Duration of a transfer (`seconds`), and the part in which the rank's own cores copy
  /// (`copying`).
  struct Sending {
    double seconds = 0, copying = 0;
  };

  /// Returns the seconds of a transfer that do not overlap with `work`, in seconds.
  static double exposed(const Sending& sending, double work);

  /// All-to-all: in each run of `size` neighbours, every rank sends `bytes` in equal parts to the
  /// other ranks of the run.
  Sending to_all(double bytes, int size) const;

  /// Ring hop: every rank sends `bytes` to the next rank of its ring. `crossings`: number of these
  /// messages that leave a machine through its port.
  Sending to_next(double bytes, int crossings) const;

  /// For rings of `size` ring ranks with stride `stride`: returns the largest number of ranks on
  /// one machine whose next rank is on another machine.
  int crossings(int size, int stride) const;

 private:
  int machine(int rank) const { return (base + rank) / cluster.ranks_per_machine; }
  double far_seconds(double bytes, int senders) const;
  Sending sending(double bytes, double seconds) const;
};

}  // namespace longspan
