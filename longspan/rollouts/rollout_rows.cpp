#include "longspan/rollouts/rollout_rows.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/input/numbers.h"
#include "longspan/rollouts/group.h"
#include "longspan/rollouts/rollout_examples.h"
#include "longspan/rollouts/rollout_file.h"
#include "longspan/rows/shared_prompt.h"

namespace longspan {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30, kLinesAtOnce = 256;
/// A row of more rollouts counts as one document, which is an upper bound.
constexpr int64_t kMostDocuments = 4096;

/// Returns a number of tokens; the largest that is counted, if the product is larger.
int64_t count_of(std::initializer_list<int64_t> factors) {
  return std::min(product_of(factors).value_or(kMostCounted), kMostCounted);
}

/// Returns the row of groups that are collated as in training (stages/row.cpp).
RowLengths row_of_groups(const std::vector<RolloutGroup>& groups, const RolloutLimits& limits) {
  const RolloutEncoding encoding{.cutoff_len = limits.cutoff_len,
                                 .columns = {},  // no column has values where tokens are shared
                                 .masks_truncated = limits.policy.mask_truncated_completions};
  BadRows bad;
  std::vector<Example> examples;
  for (const RolloutGroup& group : groups) {
    examples.push_back(encode_rollouts(group, encoding, bad).example);
  }
  std::vector<const Example*> pointers;
  for (const Example& example : examples) {
    if (!example.documents.empty()) pointers.push_back(&example);
  }
  if (pointers.empty()) return {};
  const Batch row = collate_shared(pointers, SharedTokens::kWithOneLabel);
  return {.num_tokens = row.tokens_T.numel(),
          .num_labels = count_labels(row),
          .documents = row.packing.documents()};
}

}  // namespace

RowLengths row_of_answers(const RolloutLimits& limits, int64_t prompt) {
  const PolicySettings& policy = limits.policy;
  const int64_t G = policy.num_generations, answer = policy.max_completion_length;
  const bool has_turns = !policy.environment_command.empty() && policy.max_turns > 1;
  const int64_t room = has_turns ? std::max<int64_t>(answer, limits.cutoff_len - prompt) : answer;
  // Each branch has its own copy of the prompt's last token (rows/shared_prompt.h).
  const int64_t shared = G > 1 ? prompt - 1 : 0, branch = prompt - shared + room;
  RowLengths row;
  Document document{.length = shared + G * branch};
  if (shared > 0 && G <= kMostDocuments) {
    document.segments.push_back({0, kNoParent});
    for (int64_t i = 0; i < G; ++i) document.segments.push_back({shared + i * branch, 0});
  }
  const int64_t trained =
      has_turns && policy.max_turns < room / answer ? policy.max_turns * answer : room;
  row.num_tokens = count_of({limits.num_groups, document.length});
  row.num_labels = count_of({limits.num_groups, G, trained});
  if (G > kMostDocuments / limits.num_groups) return row;
  for (int64_t group = 0; group < limits.num_groups; ++group) {
    if (shared > 0) {
      row.documents.push_back(document);
    } else {
      row.documents.insert(row.documents.end(), G, Document{.length = branch});
    }
  }
  return row;
}

RowLengths row_of_any_rollouts(const RolloutLimits& limits) {
  const int64_t rollouts = limits.num_groups * limits.policy.num_generations;
  // No token predicts a document's first token.
  RowLengths row{.num_tokens = count_of({rollouts, limits.cutoff_len}),
                 .num_labels = count_of({rollouts, limits.cutoff_len - 1})};
  if (rollouts <= kMostDocuments) row.documents.assign(rollouts, {.length = limits.cutoff_len});
  return row;
}

RowsOfFile rows_of_file(const RolloutLimits& limits, const RolloutRules& rules,
                        int64_t num_groups_of_run) {
  RowsOfFile rows;
  RolloutFollower file(limits.policy.rollouts, rules);
  GroupCollector groups({.num_generations = limits.policy.num_generations});
  try {
    while (rows.num_groups < num_groups_of_run && file.position().offset < kMostBytes) {
      BadRows bad;
      std::vector<Rollout> more = file.next(kLinesAtOnce, bad);
      if (more.empty()) break;
      for (Rollout& rollout : more) groups.add(std::move(rollout));
      while (rows.num_groups < num_groups_of_run && groups.num_complete() >= limits.num_groups) {
        std::vector<std::string> notes;
        RowLengths row = row_of_groups(groups.take(limits.num_groups, std::nullopt, notes), limits);
        if (row.num_tokens > rows.longest.num_tokens) rows.longest = std::move(row);
        rows.num_groups += limits.num_groups;
      }
    }
  } catch (const UserError&) {
    return rows;  // the run says what is wrong when it trains on the rollouts
  }
  rows.is_all = rows.num_groups >= num_groups_of_run && !limits.policy.max_staleness;
  return rows;
}

}  // namespace longspan
