// Groups of some of a run's ranks, made while the run goes on.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

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
  /// Calls `visit` with each mesh, in an order that all ranks share.
  void each(const std::function<void(const Mesh&)>& visit) const;
  /// Returns a new group of all ranks of the run, whose connections end when the caller shuts it
  /// down. `name`: used once in a run. Collective over the run. Throws CommunicationError.
  Group temporary(const std::string& name) const;
  /// As shut_down() of a mesh, in an order that all ranks share.
  void shut_down() const;

 private:
  GroupPlace world_;
  const LinkTraits& link_;
  std::shared_ptr<CollectiveCounts> counts_;
  std::map<RankRange, Mesh> made_;
};

}  // namespace longspan
