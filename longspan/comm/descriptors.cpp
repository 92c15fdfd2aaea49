#include "longspan/comm/descriptors.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "longspan/base/user_error.h"
#include "longspan/plan/rank_groups.h"

namespace longspan {
namespace {

/// Standard streams, connections to the store and logs (measured: 8), and short-lived files.
constexpr int64_t kOfAnyRun = 24;
/// For each group: its listening and waiting descriptors, as measured.
constexpr int64_t kOfGroup = 4;
/// For a store's server, and for each rank connected to it: the connections of its groups,
/// heartbeat and notices, and two short-lived ones. Measured: 9 and 3.
constexpr int64_t kOfServer = 12, kOfRankAtServer = 5;
/// For Python. Its pipes to each worker are counted above.
constexpr int64_t kOfLauncher = 24;

int64_t descriptors_of_groups(const ParallelPlan& plan) {
  int64_t needed = 0;
  for (const RankGroup& group : connected_groups(plan)) needed += kOfGroup + group.size - 1;
  return needed;
}

}  // namespace

int64_t descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return INT64_MAX;
  return limit.rlim_cur == RLIM_INFINITY ? INT64_MAX : static_cast<int64_t>(limit.rlim_cur);
}

int64_t descriptors_of_rank(const ParallelPlan& plan, bool serves_store) {
  const int64_t needed = kOfAnyRun + descriptors_of_groups(plan);
  return needed + (serves_store ? kOfServer + kOfRankAtServer * plan.world_size : 0);
}

int64_t descriptors_of_submeshes(const std::map<int, ParallelPlan>& plans) {
  int64_t needed = 0;
  for (const auto& [degree, plan] : plans) needed += 2 * descriptors_of_groups(plan);
  return needed;
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
