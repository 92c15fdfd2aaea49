// Groups of some of a run's ranks, made while the run goes on.
#pragma once

#include <map>
#include <memory>

#include "longspan/comm/link.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/dealing.h"

namespace longspan {

/// Meshes of neighbouring ranks, made on their first use, and kept.
class Submeshes {
 public:
  /// `world`: the place of this rank among all ranks of the run. `counts`: the run's counters.
  Submeshes(GroupPlace world, const LinkTraits& link, std::shared_ptr<CollectiveCounts> counts);

  /// Returns the mesh of `ranks`, which hold this rank. `plan`: of these ranks alone, equal at each
  /// call. The reference stays valid. Collective over `ranks` at the first call: all ranks of a run
  /// make their meshes in one order. Throws CommunicationError if a rank does not come.
  const Mesh& of(const RankRange& ranks, const ParallelPlan& plan);
  /// As shut_down() of a mesh, in an order that all ranks share.
  void shut_down() const;

 private:
  GroupPlace world_;
  const LinkTraits& link_;
  std::shared_ptr<CollectiveCounts> counts_;
  std::map<RankRange, Mesh> made_;
};

}  // namespace longspan
