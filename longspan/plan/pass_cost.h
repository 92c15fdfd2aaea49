// What a forward or a backward pass of attention costs the links and cores of a sequence group.
// Methods put their estimates together from it. No torch.
#pragma once

#include <cstdint>

#include "longspan/data/packing.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/cost_model.h"
#include "longspan/plan/parallel_plan.h"

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

  /// How long bytes travel, and for how much of that time the rank's own cores copy them.
  struct Sending {
    double seconds = 0, copying = 0;
  };

  /// The seconds of sending that `work`, which runs at the same time, does not hide.
  static double exposed(const Sending& sending, double work);

  /// Every rank of each run of `size` neighbours sends `bytes`, evenly to the others of its run.
  Sending to_all(double bytes, int size) const;

  /// Every rank sends `bytes` to the next rank of its ring; `crossings` of these messages go
  /// through one machine's port.
  Sending to_next(double bytes, int crossings) const;

  /// For rings of `size` ring ranks that lie `stride` ring ranks apart: the most ranks of one
  /// machine whose next rank is on another machine.
  int crossings(int size, int stride) const;

 private:
  int machine(int rank) const { return (base + rank) / cluster.ranks_per_machine; }
  double far_seconds(double bytes, int senders) const;
  Sending sending(double bytes, double seconds) const;
};

}  // namespace longspan
