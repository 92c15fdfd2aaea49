// Counters of a rank's progress in each of its groups, for other threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "longspan/comm/wait_timer.h"

namespace longspan {

/// Number of collectives started, by group. All ranks of a group start the same collectives in the
/// same order.
using StartedCollectives = std::map<std::string, int64_t>;

/// Counters of a rank in one group.
struct GroupCounter {
  std::atomic<int64_t> started{0};  // collectives
  WaitTimer waits;                  // for the group's collectives
};

/// The counters of one rank's groups. Thread-safe, but for the times of waits.
class CollectiveCounts {
 public:
  using Counter = std::shared_ptr<GroupCounter>;

  /// Returns the counter of a group, which the group itself changes. `group`: a name without spaces
  /// that is unique in the run and the same on all ranks of the group.
  Counter of(const std::string& group) {
    const std::lock_guard lock(mutex_);
    return counters_.emplace(group, std::make_shared<GroupCounter>()).first->second;
  }

  StartedCollectives now() const {
    const std::lock_guard lock(mutex_);
    StartedCollectives counts;
    for (const auto& [group, counter] : counters_) counts[group] = counter->started;
    return counts;
  }

  /// Returns the seconds of all waits for collectives that have ended. Called by the thread that
  /// uses the groups.
  double waited_seconds() const {
    const std::lock_guard lock(mutex_);
    double seconds = 0.0;
    for (const auto& [group, counter] : counters_) seconds += counter->waits.seconds();
    return seconds;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Counter> counters_;
};

}  // namespace longspan
