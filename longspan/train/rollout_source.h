// Training rows from rollouts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/mesh.h"
#include "longspan/data/example_source.h"
#include "longspan/rollouts/rollout.h"

namespace longspan {

struct OptimizationSettings;
struct PolicySettings;

/// Makes the rollouts of a run, batch after batch.
class RolloutMaker {
 public:
  virtual ~RolloutMaker() = default;
  /// Returns the rollouts of batch `batch`, with rewards or advantages: `num_groups` complete
  /// groups, the rollouts of a group one after another. `policy_version`: number of updates of the
  /// policy so far. The result counts on rank 0 only. Called with ascending numbers; the first call
  /// after a restart may have any number. `is_begun`: some updates have used the batch already,
  /// before a restart. nullopt, on rank 0: the run was asked to stop. Throws UserError on any rank.
  /// Collective.
  virtual std::optional<std::vector<Rollout>> make(int64_t batch, int64_t num_groups,
                                                   int64_t policy_version, bool is_begun) = 0;
};

/// Gives each data-parallel group its groups of rollouts. A batch has the rollouts of one step, and
/// is used by `num_iterations` steps in turn.
class RolloutSource final : public ExampleSource {
 public:
  /// `cutoff_len`: most tokens of a rollout with its prompt. All arguments must outlive this
  /// object.
  RolloutSource(const PolicySettings& policy, const OptimizationSettings& optimization,
                int64_t cutoff_len, const Mesh& mesh, std::unique_ptr<RolloutMaker> maker);

  std::optional<int64_t> num_batches() const override { return std::nullopt; }
  bool prepare(int64_t step) override;
  DrawnExamples next(int64_t epoch, int64_t batch) override;
  std::string state() const override { return ""; }
  void resume(const std::string& state) override;

 private:
  const PolicySettings& policy_;
  const OptimizationSettings& optimization_;
  int64_t cutoff_len_;
  const Mesh& mesh_;
  std::unique_ptr<RolloutMaker> maker_;
  int64_t groups_of_row_, groups_of_step_;
  int64_t number_ = -1;                 // of the batch in groups_
  std::vector<ExamplePointer> groups_;  // of all ranks
};

}  // namespace longspan
