// Cost of a forward or backward pass of attention on the links and cores of a sequence group.
// Methods combine their estimates from it. No torch.
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

  /// Duration of a transfer, and the part of it in which the rank's own cores copy.
  struct Sending {
    double seconds = 0, copying = 0;
  };

  /// Returns the seconds of a transfer that concurrent `work` does not hide.
  static double exposed(const Sending& sending, double work);

  /// In each run of `size` neighbours, every rank sends `bytes`, evenly to the others.
  Sending to_all(double bytes, int size) const;

  /// Every rank sends `bytes` to the next rank of its ring; `crossings` of these messages leave
  /// through one machine's port.
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
