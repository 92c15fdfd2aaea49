// How far a rank has come in each of its groups, for those who look from another thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace longspan {

/// Collectives started, by group. All ranks of a group start the same ones in the same order.
using StartedCollectives = std::map<std::string, int64_t>;

/// The counters of one rank's groups. Safe for threads.
class CollectiveCounts {
 public:
  using Counter = std::shared_ptr<std::atomic<int64_t>>;

  /// A counter, at 0, that the group adds to. `group`: without spaces, the same on all its ranks,
  /// and no other group's of the run.
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
