// Rollouts of the model in training: it answers the questions of the data set.
#pragma once

#include "longspan/data/example_set.h"
#include "longspan/generation/generate.h"
#include "longspan/rollouts/rewards.h"
#include "longspan/session/session.h"
#include "longspan/text/tokenizer.h"
#include "longspan/train/file_rollouts.h"

namespace longspan {

/// Every batch takes the next questions, in an order that is drawn anew in each pass over the data
/// set. Answers, rewards and therefore batches depend on the parameters, the seed and the number of
/// the batch only.
///
/// Rank 0 writes each batch into `folder` (JSON lines, docs/rollouts.md) before the batch is used.
/// After a restart in the middle of a batch's updates, the batch is read from there.
class SelfRollouts final : public RolloutMaker {
 public:
  struct Parts {
    RolloutRun run;
    Session& session;
    const ExampleSet& questions;
    const Tokenizer& tokenizer;
    std::set<int32_t> end_tokens;
    std::string folder;
    int64_t seed;
    int64_t cutoff_len;  // most tokens of a question and its answer
  };
  /// All parts must outlive this object. Throws UserError.
  explicit SelfRollouts(Parts parts);

  std::string digest(int64_t) const override { return ""; }
  std::optional<std::vector<Rollout>> make(int64_t batch, int64_t num_groups,
                                           int64_t policy_version, bool is_begun) override;

 private:
  /// Returns the places of a batch's questions in the data set.
  std::vector<int64_t> questions_of(int64_t batch, int64_t num_groups) const;
  /// Throws UserError for a question that leaves too little room for an answer.
  void require_room(const std::vector<ExamplePointer>& questions) const;
  std::vector<Rollout> answered(int64_t batch, int64_t num_groups, int64_t policy_version);
  std::string file_of(int64_t batch) const;

  Parts parts_;
  std::optional<Rewards> rewards_;  // nullopt: the stage uses none
};

}  // namespace longspan
