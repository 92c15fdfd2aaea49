#include "longspan/comm/descriptors.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "longspan/config/user_error.h"
#include "longspan/plan/rank_groups.h"

namespace longspan {
namespace {

/// Standard streams, connections to the store, logs: measured to be 8; and files on the way.
constexpr int64_t kOfAnyRun = 24;
/// Of a group: what it listens at and waits with, as measured.
constexpr int64_t kOfGroup = 4;
/// Of a store's server, and of each rank that is connected to it: its groups', its heartbeat's and
/// its notices' connections, and two on the way. Measured to be 9 and 3.
constexpr int64_t kOfServer = 12, kOfRankAtServer = 5;
/// Python, and a pipe or two for each worker, which are among those above.
constexpr int64_t kOfLauncher = 24;

}  // namespace

int64_t descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return INT64_MAX;
  return limit.rlim_cur == RLIM_INFINITY ? INT64_MAX : static_cast<int64_t>(limit.rlim_cur);
}

int64_t descriptors_of_rank(const ParallelPlan& plan, bool serves_store) {
  int64_t needed = kOfAnyRun;
  for (const RankGroup& group : connected_groups(plan)) needed += kOfGroup + group.size - 1;
  return needed + (serves_store ? kOfServer + kOfRankAtServer * plan.world_size : 0);
}

int64_t descriptors_of_launcher(int64_t world_size) {
  return kOfLauncher + kOfServer + kOfRankAtServer * world_size;
}

void require_descriptors(const char* who, int64_t needed) {
  const int64_t allowed = descriptor_limit();
  if (allowed >= needed) return;
  throw UserError(fmt::format(
      "{} needs up to {} open files and connections, and {} are allowed (ulimit -n). Raise the "
      "limit to {} at least: `ulimit -n {}`, or its hard limit (ulimit -Hn), which takes "
      "an administrator.",
      who, needed, allowed, needed, needed));
}

}  // namespace longspan
