// Counters of a rank's progress in each of its groups, for other threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace longspan {

/// Number of collectives started, by group. All ranks of a group start the same collectives in the
/// same order.
using StartedCollectives = std::map<std::string, int64_t>;

/// The counters of one rank's groups. Thread-safe.
class CollectiveCounts {
 public:
  using Counter = std::shared_ptr<std::atomic<int64_t>>;

  /// Returns the counter of a group. The counter starts at 0, and the group adds 1 for each
  /// collective. `group`: a name without spaces that is unique in the run and the same on all ranks
  /// of the group.
  Counter of(const std::string& group) {
    const std::lock_guard lock(mutex_);
    return counters_.emplace(group, std::make_shared<std::atomic<int64_t>>(0)).first->second;
  }

  StartedCollectives now() const {
    const std::lock_guard lock(mutex_);
    StartedCollectives counts;
    for (const auto& [group, counter] : counters_) counts[group] = *counter;
    return counts;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Counter> counters_;
};

}  // namespace longspan
