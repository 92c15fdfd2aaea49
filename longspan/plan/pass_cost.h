// What a forward or a backward pass of attention costs the links and cores of a sequence group:
// what estimates of methods are put together from. No torch.
#pragma once

#include <cstdint>

#include "longspan/data/packing.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

/// One sequence group: ranks base, base + 1, ... of machines of so many ranks.
class PassCost {
 public:
  const ParallelPlan& plan;
  const AttentionShape& shape;
  const Packing& padded;
  const ClusterModel& cluster;
  int base;
  bool backward;

  /// How long bytes travel, and how much of that the rank's own cores work at it.
  struct Sending {
    double seconds = 0, copying = 0;
  };

  /// What remains beside `work` that runs at the same time.
  static double exposed(const Sending& sending, double work);

  /// Every rank of each run of `size` neighbours sends `bytes`, evenly to the others of its run.
  Sending to_all(double bytes, int size) const;

  /// Every rank sends `bytes` to the next of its ring, of which so many go through a machine's
  /// port.
  Sending to_next(double bytes, int crossings) const;

  /// Rings of `size` ring ranks, `stride` ring ranks apart: the most ranks of a machine whose next
  /// is on another one.
  int crossings(int size, int stride) const;

 private:
  int machine(int rank) const { return (base + rank) / cluster.ranks_per_machine; }
  double far_seconds(double bytes, int senders) const;
  Sending sending(double bytes, double seconds) const;
};

}  // namespace longspan
