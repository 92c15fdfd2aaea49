#include "longspan/plan/pass_cost.h"

#include <algorithm>
#include <map>

namespace longspan {

double PassCost::exposed(const Sending& sending, double work) {
  return sending.copying + std::max(0.0, sending.seconds - sending.copying - work);
}

/// `senders`: ranks of a machine that send to other machines at the same time.
double PassCost::far_seconds(double bytes, int senders) const {
  const double rate = cluster.between_bytes / (cluster.shares_port ? senders : 1);
  return bytes / rate + cluster.between_delay;
}

PassCost::Sending PassCost::sending(double bytes, double seconds) const {
  if (!cluster.copies_cost_work) return {seconds, 0.0};
  const double copying = bytes / cluster.inside_bytes + cluster.inside_delay;
  return {std::max(seconds, copying), copying};
}

PassCost::Sending PassCost::to_all(double bytes, int size) const {
  double slowest = 0;
  for (int rank = 0; rank < plan.sequence_size && size > 1; ++rank) {
    const int first = rank / size * size;
    int near = 0;
    for (int other = first; other < first + size; ++other) near += machine(other) == machine(rank);
    const double to_one = bytes / (size - 1);
    slowest = std::max(
        {slowest, to_one * (near - 1) / cluster.inside_bytes + cluster.inside_delay,
         near < size ? far_seconds(to_one * (size - near), cluster.ranks_per_machine) : 0.0});
  }
  return sending(bytes, slowest);
}

PassCost::Sending PassCost::to_next(double bytes, int crossings) const {
  return sending(bytes, crossings > 0 ? far_seconds(bytes, crossings)
                                      : bytes / cluster.inside_bytes + cluster.inside_delay);
}

int PassCost::crossings(int size, int stride) const {
  const int R = plan.ring_size, U = plan.ulysses_size;
  std::map<int, int> of_machine;
  int most = 0;
  for (int ring_rank = 0; ring_rank < R; ++ring_rank) {
    const int place = ring_rank / stride % size;
    const int next = ring_rank + ((place + 1) % size - place) * stride;
    for (int u = 0; u < U; ++u) {
      const int here = machine(ring_rank * U + u);
      if (here != machine(next * U + u)) most = std::max(most, ++of_machine[here]);
    }
  }
  return most;
}

}  // namespace longspan
