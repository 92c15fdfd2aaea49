// Rollouts from a file that may grow during the run.
#pragma once

#include <functional>
#include <memory>

#include "longspan/data/bad_rows.h"
#include "longspan/liveness/notices.h"
#include "longspan/report/events.h"
#include "longspan/rollouts/group.h"
#include "longspan/rollouts/rollout_file.h"
#include "longspan/settings/policy_settings.h"
#include "longspan/train/rollout_source.h"

namespace longspan {

/// The parts of a run that makers of rollouts use.
struct RolloutRun {
  const PolicySettings& policy;
  RolloutNeeds needs;
  OnBadRow on_bad_row;
  const Group& world;
  Notices& notices;
  Events& events;
  std::function<bool()> stops;  // true: the run was asked to stop; called on rank 0
};

/// Rank 0 reads the file in order. After a restart, it reads the groups of earlier batches again,
/// and skips them.
class FileRollouts final : public RolloutMaker {
 public:
  /// `rules`: of the file's lines; their parts must outlive this object.
  FileRollouts(const RolloutRun& run, const RolloutRules& rules);

  std::string digest(int64_t batch) const override;
  std::string origin() const override { return run_.policy.rollouts; }
  std::optional<std::vector<Rollout>> make(int64_t batch, int64_t num_groups,
                                           int64_t policy_version, bool is_begun) override;

 private:
  /// Returns the groups of the next batch, and waits for more lines where the file has too few.
  std::optional<std::vector<RolloutGroup>> take(int64_t num_groups, int64_t policy_version);

  RolloutRun run_;
  RolloutFollower file_;
  GroupCollector groups_;
  /// Prints, once, which values of the rollouts the run does not use.
  void say_unused(const std::vector<Rollout>& rollouts);

  int64_t next_batch_ = 0;
  std::vector<std::string> digests_;  // by batch
  bool said_unused_ = false;
};

}  // namespace longspan
