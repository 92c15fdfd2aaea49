// Training rows from rollouts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/data/example_source.h"
#include "longspan/liveness/notices.h"
#include "longspan/rollouts/group.h"
#include "longspan/rollouts/rollout_rows.h"

namespace longspan {

struct MethodSettings;
struct PolicySettings;
struct PreferenceSettings;

/// The values of rollouts that a run uses for training.
struct RolloutNeeds {
  bool rewards = false;           // rewards or advantages
  bool teacher_logprobs = false;  // given with the rollouts
  bool sampler_logprobs = false;  // used if the rollouts have them
};
RolloutNeeds rollout_needs(const MethodSettings& method, const PreferenceSettings& preferences);

/// Makes the rollouts of a run, batch after batch.
class RolloutMaker {
 public:
  virtual ~RolloutMaker() = default;
  /// Returns a hash of the rollouts up to a batch, on rank 0, for the last batches that make() has
  /// seen. Empty: the rollouts are not known any more, and no later batch depends on them.
  virtual std::string digest(int64_t batch) const = 0;
  /// Returns the file or folder of the rollouts, for errors.
  virtual std::string origin() const = 0;
  /// Returns the rollouts of batch `batch`, with rewards or advantages: `num_groups` complete
  /// groups, with the rollouts of a group next to each other. `policy_version`: number of updates
  /// of the policy so far. The result is valid on rank 0 only. Called with ascending numbers; the
  /// first call after a restart may have any number. `is_begun`: some updates have used the batch
  /// already, before a restart. nullopt, on rank 0: the run was asked to stop. Throws UserError on
  /// any rank. Collective.
  virtual std::optional<std::vector<Rollout>> make(int64_t batch, int64_t num_groups,
                                                   int64_t policy_version, bool is_begun) = 0;
};

/// Gives each data-parallel group its groups of rollouts. A batch has the rollouts of one step, and
/// is used by `num_iterations` steps in turn.
class RolloutSource final : public ExampleSource {
 public:
  /// `num_rows`: of a rank in a step. All references must outlive this object.
  RolloutSource(const RolloutLimits& limits, const RolloutNeeds& needs, int64_t num_rows,
                const Mesh& mesh, Notices& notices, std::unique_ptr<RolloutMaker> maker);

  std::optional<int64_t> num_batches() const override { return std::nullopt; }
  bool prepare(int64_t step) override;
  DrawnExamples next(int64_t epoch, int64_t batch) override;
  /// The batch in use, and the maker's digest.
  std::string state() const override;
  /// The next prepare() compares the digest of the batch, and throws UserError if it differs.
  void resume(const std::string& state) override;

 private:
  /// Returns the maker's rollouts as text, on rank 0. Empty: the run was asked to stop.
  std::string made(int64_t step);
  /// Returns the groups as examples. Throws UserError.
  std::vector<ExamplePointer> encoded(const std::vector<RolloutGroup>& groups) const;

  RolloutLimits limits_;
  RolloutNeeds needs_;
  int64_t num_rows_;
  const Mesh& mesh_;
  Notices& notices_;
  std::unique_ptr<RolloutMaker> maker_;
  int64_t groups_of_step_;
  int64_t number_ = -1;                 // of the batch in groups_
  std::string digest_;                  // of that batch
  std::vector<ExamplePointer> groups_;  // of all ranks
  std::string expected_;                // state of the checkpoint, until it is compared
};

}  // namespace longspan
