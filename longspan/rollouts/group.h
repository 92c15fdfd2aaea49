// Groups of rollouts, and batches of complete groups. No torch.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "longspan/rollouts/rollout.h"

namespace longspan {

/// All rollouts of one prompt, in the order of their arrival.
struct RolloutGroup {
  std::string name;
  std::vector<Rollout> rollouts;
};

struct GroupRules {
  /// Number of rollouts in a group, including rollouts that other rollouts continue. nullopt: a
  /// group is complete at GroupCollector::finish().
  std::optional<int64_t> num_generations;
  /// The largest difference between the policy's version now and at sampling, in updates. nullopt:
  /// any.
  std::optional<int64_t> max_staleness = {};
};

/// Collects rollouts into groups. A group is complete with its num_generations-th rollout; a later
/// rollout with the same group name begins a new group.
class GroupCollector {
 public:
  explicit GroupCollector(const GroupRules& rules) : rules_(rules) {}

  /// Throws RowError if the rollout completes a group whose links are bad (check_links).
  void add(Rollout rollout);
  /// Must be called at the end of a file that does not grow. Without num_generations, completes all
  /// groups. Otherwise throws UserError if a group is incomplete.
  void finish();

  /// Returns the next `num_groups` complete groups, in the order of their completion. Returns none,
  /// and keeps the groups, if there are fewer. `version`: updates of the policy so far; nullopt:
  /// versions are not compared. Drops each group, up to the last returned group, that has a rollout
  /// of a version below `version` - max_staleness; `notes` gets a sentence with the number of
  /// dropped groups. Throws UserError, for one of these groups: a version above `version`; a
  /// rollout without a version, if max_staleness is set; an id that two groups share.
  std::vector<RolloutGroup> take(int64_t num_groups, std::optional<int64_t> version,
                                 std::vector<std::string>& notes);

  int64_t num_complete() const { return static_cast<int64_t>(complete_.size()); }
  /// All groups that take() has dropped.
  int64_t num_dropped() const { return num_dropped_; }
  /// Returns e.g. "2 groups are incomplete: \"7\" has 3 of 8 rollouts, ..."; "" if there are none.
  std::string incomplete() const;

 private:
  void complete(RolloutGroup group);
  bool is_stale(const RolloutGroup& group, int64_t version) const;
  /// Drops the complete groups with the indices `stale`, which ascend.
  void drop(const std::vector<size_t>& stale, int64_t version, std::vector<std::string>& notes);

  GroupRules rules_;
  std::map<std::string, size_t> places_;  // of incomplete groups in open_, by name
  std::map<size_t, RolloutGroup> open_;   // by the order of their first rollouts
  size_t num_opened_ = 0;
  std::deque<RolloutGroup> complete_;
  int64_t num_dropped_ = 0;
};

}  // namespace longspan
