// Internals of comm/ that use c10d, without c10d's headers.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <string>

#include "longspan/comm/collective_counts.h"
#include "longspan/comm/group.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/rank_groups.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace longspan {

struct GroupPlace;
struct LinkTraits;

/// Returns a group over a c10d backend. `name` appears in messages ("sequence"). `counter`:
/// receives the group's collectives and waits; null: none.
Group group_over(c10::intrusive_ptr<c10d::Backend> backend, std::string name,
                 const LinkTraits& link, CollectiveCounts::Counter counter = nullptr);

/// Returns Gloo's process group of `size` ranks that share the store. `interfaces`: a comma list of
/// network interfaces; where it is empty, the address `host` of this machine is used.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                                    int size, int64_t timeout_seconds,
                                                    const std::string& host,
                                                    const std::string& interfaces = "");

/// Returns the member of a mesh for this kind of group.
Group Mesh::* member_of(GroupKind kind);

/// Returns this machine's address that the other ranks can reach.
std::string own_address(const Rendezvous& where);

/// Throws UserError on every rank unless all ranks have the same plan and the same kind of device.
/// Each rank chooses its plan from local information, which may differ between machines with
/// different numbers of processes. Ranks with different plans would wait for each other forever.
/// Each rank compares its plan with that of rank 0. Returns once all ranks have come. `store`:
/// shared by the ranks, used once.
void require_one_plan(c10d::Store& store, int own_rank, int size, const ParallelPlan& plan,
                      const LinkTraits& link);

/// Makes all groups of one rank of a plan. `world`: this rank's number among all ranks of the plan,
/// and the store that these ranks share. `counts`: receives the counters of the groups, under names
/// that begin with `prefix`.
Mesh make_mesh_over(const GroupPlace& world, const ParallelPlan& plan, const LinkTraits& link,
                    const std::shared_ptr<CollectiveCounts>& counts, const std::string& prefix);
/// Makes the mesh of a run, with counters of its own, from which submeshes can be made.
Mesh make_mesh_over(const GroupPlace& world, const ParallelPlan& plan, const LinkTraits& link);

}  // namespace longspan
