// The longest row of rollouts, before the rollouts are trained: an upper bound from the
// configuration, or the longest row of a file.
#pragma once

#include <cstdint>

#include "longspan/account/run_account.h"
#include "longspan/rollouts/rollout_line.h"
#include "longspan/settings/policy_settings.h"

namespace longspan {

/// Limits of the documents in a row.
struct RolloutLimits {
  const PolicySettings& policy;
  int64_t cutoff_len;  // most tokens of a rollout with its prompt
  int64_t num_groups;  // of a row
};

/// Returns the longest row of sampled rollouts (rollout: self and server) whose prompts have
/// `prompt` tokens each. With an environment and more than one turn, a rollout may have cutoff_len
/// tokens; otherwise its answer has at most max_completion_length.
RowLengths row_of_answers(const RolloutLimits& limits, int64_t prompt);

/// Returns the longest row of any rollouts: each has cutoff_len tokens, and no two rollouts share
/// tokens.
RowLengths row_of_any_rollouts(const RolloutLimits& limits);

/// The rows of a file of rollouts, as far as the file is known.
struct RowsOfFile {
  RowLengths longest;
  int64_t num_groups = 0;  // groups that were read
  bool is_all = false;     // the file has all groups of the run, so that `longest` is exact
};

/// Reads the file as FileRollouts does, at most the first `num_groups_of_run` groups and the first
/// GiB, and ends at an error in the file. `max_staleness` may drop groups, so `is_all` is false
/// with this key.
RowsOfFile rows_of_file(const RolloutLimits& limits, const RolloutRules& rules,
                        int64_t num_groups_of_run);

}  // namespace longspan
