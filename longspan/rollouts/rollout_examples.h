// Rollouts as examples of a stage.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/data/bad_rows.h"
#include "longspan/rollouts/group.h"
#include "longspan/rows/example.h"

namespace longspan {

/// Columns of a sample, fp64 [tokens], padding 0. The value of label i is at token i - 1, the token
/// that predicts the label. Batch::columns at label_rows() are therefore the labels' values. All
/// other values are 0.
inline constexpr const char* kSamplerLogprobs = "sampler_logprob";
inline constexpr const char* kTeacherLogprobs = "teacher_logprob";
inline constexpr const char* kAdvantage = "advantage";

/// The columns that the samples of a run have.
struct RolloutColumns {
  bool sampler_logprobs = false, teacher_logprobs = false, advantages = false;
  bool operator==(const RolloutColumns&) const = default;
};

/// Returns the columns that the rollouts have values for. Throws RowError if only some of the
/// rollouts have values for a column.
RolloutColumns columns_of(const std::vector<RolloutGroup>& groups);

struct RolloutEncoding {
  int64_t cutoff_len;  // most tokens of a document
  RolloutColumns columns;
  /// Whether truncated rollouts lose their labels (overlong filtering, arXiv 2503.14476). Their
  /// documents stay.
  bool masks_truncated = false;
};

/// A group as an example, with the numbers of its documents.
struct RolloutExample {
  Example example;              // a document for each kept rollout, in the order of the group
  std::vector<int64_t> kept;    // indices of the kept rollouts in the group
  std::vector<double> rewards;  // of the documents; empty unless all have a reward
  int64_t num_truncated = 0;    // documents whose answer ended by its length limit
};

/// Encodes a group whose links are good (check_links). A rollout becomes a document of the tokens
/// of all its ancestors and of its own tokens. Only its own trained tokens are labels, because the
/// ancestors' tokens are labels of the ancestors' documents. A document of more than cutoff_len
/// tokens is not cut: the rollout is added to `bad` and left out. Throws RowError if a rollout has
/// no values for one of the columns.
RolloutExample encode_rollouts(const RolloutGroup& group, const RolloutEncoding& encoding,
                               BadRows& bad);

}  // namespace longspan
