// Ranks as threads of one process, for tests.
#pragma once

#include <functional>

#include "longspan/comm/mesh.h"
#include "longspan/testing/thread_groups.h"

namespace longspan::testing {

/// Runs `body` once for each rank of the plan, in threads that are connected by the link and
/// compute with one thread each. An exception in one rank ends the others (they lose their peer, or
/// time out after some seconds); the first exception is rethrown here. Use doctest's CHECK and
/// REQUIRE only in one rank or after the call; otherwise gather results by rank.
void run_ranks(const ParallelPlan& plan, const std::function<void(const Mesh& mesh)>& body,
               const LinkTraits& link = thread_link());

/// As the function above, without sequence parallelism: mesh.world (= mesh.data) has num_ranks
/// ranks.
void run_ranks(int num_ranks, const std::function<void(const Mesh& mesh)>& body,
               const LinkTraits& link = thread_link());

}  // namespace longspan::testing
