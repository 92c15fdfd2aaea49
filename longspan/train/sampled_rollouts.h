// Rollouts that the run samples: answers to the questions of the data set, with rewards.
#pragma once

#include "longspan/data/example_set.h"
#include "longspan/rollouts/rewards.h"
#include "longspan/text/tokenizer.h"
#include "longspan/train/answer_source.h"
#include "longspan/train/conversations.h"
#include "longspan/train/file_rollouts.h"
#include "longspan/train/rollouts_ahead.h"

namespace longspan {

/// Every batch takes the next questions. Each pass over the data set has its own order of
/// questions. Rank 0 writes each batch into `folder` (JSON lines, docs/rollouts.md) before the
/// batch is used.
///
/// A continued run reads a batch from its file if the batch cannot be sampled again: if some
/// updates have used the batch already, or if the source gives different answers each time. A run
/// continues from a checkpoint, or from a start that ended before its first checkpoint. Any other
/// run moves the folder away.
class SampledRollouts final : public RolloutMaker {
 public:
  struct Parts {
    RolloutRun run;
    AnswerSource& source;
    Conversations& conversations;  // of the source
    const ExampleSet& questions;
    const Tokenizer& tokenizer;
    std::string folder;
    bool resumed;          // from a checkpoint
    bool goes_on;          // the same command, run again, continues the run
    std::string identity;  // digest_of(RunIdentity); empty: not known
    int64_t seed;
    bool shuffles;        // a new random order of questions in each pass over the data set
    int64_t cutoff_len;   // most tokens of a question and its answer
    int64_t num_batches;  // of the whole run
  };
  /// All parts must outlive this object. Throws UserError.
  explicit SampledRollouts(Parts parts);

  /// Returns a hash of the files up to the batch; of the batch's file alone if the source depends
  /// on the parameters and the seed only. Empty: there is no file.
  std::string digest(int64_t batch) const override;
  std::string origin() const override { return parts_.folder; }
  std::optional<std::vector<Rollout>> make(int64_t batch, int64_t num_groups,
                                           int64_t policy_version, bool is_begun) override;

 private:
  /// The questions of a batch.
  struct Asked {
    int64_t batch;
    std::vector<AskedQuestion> questions;
    uint64_t seed;
  };

  /// Takes the files of an earlier start of the same run, or moves the folder of another run away.
  void begin_folder();
  void keep_earlier_files() const;
  void make_folder() const;  // throws UserError
  std::string file_of(int64_t batch) const;
  bool has_file(int64_t batch) const;
  /// Throws UserError unless the file has whole groups, as many as a batch.
  std::vector<Rollout> read(int64_t batch, int64_t num_groups) const;
  /// Throws UserError for a question that leaves too little room for an answer.
  Asked asked(int64_t batch, int64_t num_groups) const;
  /// Throws UserError unless the prompts of the file's rollouts are the questions of the batch.
  void check_prompts(const Asked& asked, const std::vector<Rollout>& rollouts) const;
  /// Returns the rollouts without `reward`; Rollout::rewards has the environment's.
  std::vector<Rollout> rollouts_of(const Asked& asked, std::vector<HeldConversation> held,
                                   int64_t policy_version) const;
  /// Returns the rollouts with their rewards, and writes the batch's file. nullopt:
  /// `waiting.stops` returned true.
  std::optional<std::vector<Rollout>> judged(const Asked& asked, std::vector<Rollout> rollouts,
                                             const Waiting& waiting) const;
  /// Writes the batch's file. Throws UserError.
  void write(int64_t batch, const std::vector<Rollout>& rollouts) const;
  /// Returns false if `waiting.stops` returned true.
  bool add_rewards(const std::vector<JudgedAnswer>& answers, const Waiting& waiting,
                   std::vector<Rollout>& rollouts) const;
  std::optional<std::vector<Rollout>> made_by_all(int64_t batch, int64_t num_groups,
                                                  int64_t policy_version, bool is_begun);
  std::optional<std::vector<Rollout>> made_by_rank_0(int64_t batch, int64_t num_groups,
                                                     int64_t policy_version, bool is_begun);
  /// Starts all batches up to `last` that have not been started.
  void begin_up_to(int64_t last, int64_t num_groups, int64_t policy_version);
  /// Refuses rollouts of a file that are older than max_staleness allows.
  void check_age(int64_t batch, const std::vector<Rollout>& rollouts, int64_t policy_version) const;
  void add_to_digests(int64_t batch, const std::vector<Rollout>& rollouts);

  Parts parts_;
  std::optional<Rewards> rewards_;    // nullopt: the stage uses none
  int64_t next_ = -1;                 // the first batch that has not begun
  int64_t policy_version_ = 0;        // of the policy that answers
  std::vector<std::string> digests_;  // by batch
  RolloutsAhead ahead_;
};

}  // namespace longspan
