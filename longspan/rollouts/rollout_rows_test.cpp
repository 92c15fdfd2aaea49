#include "longspan/rollouts/rollout_rows.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>

#include "longspan/rollouts/rollout_examples.h"
#include "longspan/rows/shared_prompt.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {
namespace with_rows_of_rollouts {

/// Returns a group whose rollouts answer the same prompt with different tokens. `trained`: of an
/// answer.
RolloutGroup group_of(int64_t prompt, int64_t num_rollouts, int64_t answer, int64_t trained) {
  RolloutGroup group{.name = "g", .rollouts = {}};
  for (int64_t i = 0; i < num_rollouts; ++i) {
    Rollout& rollout = group.rollouts.emplace_back();
    rollout.group = "g";
    for (int64_t t = 0; t < prompt + answer; ++t) {
      rollout.token_ids.push_back(static_cast<int32_t>(t < prompt ? t : 1000 * (i + 1) + t));
      rollout.mask.push_back(t >= prompt && t < prompt + trained);
    }
  }
  return group;
}

Batch collated(const std::vector<RolloutGroup>& groups, int64_t cutoff_len) {
  BadRows bad;
  std::vector<Example> examples;
  for (const RolloutGroup& group : groups) {
    examples.push_back(
        encode_rollouts(group, {.cutoff_len = cutoff_len, .columns = {}}, bad).example);
  }
  CHECK(bad.count() == 0);
  std::vector<const Example*> pointers;
  for (const Example& example : examples) pointers.push_back(&example);
  return collate_shared(pointers, SharedTokens::kWithOneLabel);
}

void check_equal(const RowLengths& row, const Batch& batch) {
  CHECK(row.num_tokens == batch.tokens_T.numel());
  CHECK(row.num_labels == count_labels(batch));
  CHECK(row.documents == batch.packing.documents());
}

TEST_CASE("rows of rollouts: the longest sampled row is the one that its groups would make") {
  for (const int64_t num_rollouts : {1, 2, 5}) {
    for (const int64_t prompt : {1, 2, 9}) {
      for (const int64_t num_groups : {1, 3}) {
        CAPTURE(fmt::format("{} groups of {} to {}", num_groups, num_rollouts, prompt));
        PolicySettings policy;
        policy.num_generations = num_rollouts;
        policy.max_completion_length = 4;
        const RolloutLimits limits{policy, /*cutoff_len=*/30, num_groups};
        const auto groups = [&](int64_t answer, int64_t trained) {
          return std::vector<RolloutGroup>(num_groups,
                                           group_of(prompt, num_rollouts, answer, trained));
        };
        check_equal(row_of_answers(limits, prompt), collated(groups(4, 4), 30));
        // A conversation may fill cutoff_len, with at most max_turns answers.
        policy.environment_command = "tool";
        policy.max_turns = 3;
        check_equal(row_of_answers(limits, prompt), collated(groups(30 - prompt, 12), 30));
        policy.max_turns = 100;
        check_equal(row_of_answers(limits, prompt), collated(groups(30 - prompt, 30 - prompt), 30));
        policy.max_turns = 1;
        check_equal(row_of_answers(limits, prompt), collated(groups(4, 4), 30));
      }
    }
  }
}

/// A file of rollouts with prompts of 3 tokens; each group has an answer of one token, and one of
/// the given length.
struct File {
  testing::TemporaryFolder folder;
  std::string path = folder.path + "/rollouts.jsonl";

  explicit File(const std::vector<int64_t>& answers) {
    for (size_t i = 0; i < answers.size(); ++i) {
      for (const int64_t answer : {int64_t{1}, answers[i]}) {
        std::string tokens;
        for (int64_t t = 0; t < answer; ++t)
          tokens += fmt::format("{}{}", t > 0 ? ", " : "", 7 + t);
        add(fmt::format(
            R"({{"group": {}, "prompt_ids": [1, 2, 3], "completion_ids": [{}], "reward": 0}})", i,
            tokens));
      }
    }
  }
  void add(const std::string& line) const { std::ofstream(path, std::ios::app) << line << "\n"; }
  RowsOfFile rows(int64_t num_groups_of_run, int64_t groups_of_row = 1,
                  std::optional<int64_t> max_staleness = {}) const {
    PolicySettings policy;
    policy.rollouts = path;
    policy.num_generations = 2;
    policy.max_staleness = max_staleness;
    return rows_of_file({policy, /*cutoff_len=*/20, groups_of_row}, {}, num_groups_of_run);
  }
};

TEST_CASE("rows of rollouts: the longest row of a file that has all groups of the run") {
  const File file({5, 9, 2, 12});
  // Two tokens of the prompt are shared, and each answer follows a copy of the third.
  const auto tokens = [](int64_t answer) { return 2 + (1 + 1) + (1 + answer); };
  for (const auto& [groups, longest] :
       {std::pair<int64_t, int64_t>{1, 5}, {2, 9}, {3, 9}, {4, 12}}) {
    const RowsOfFile rows = file.rows(groups);
    CHECK((rows.is_all && rows.num_groups == groups));
    CHECK(rows.longest.num_tokens == tokens(longest));
    CHECK(rows.longest.num_labels == 1 + longest);
    CHECK(rows.longest.documents ==
          std::vector<Document>{{tokens(longest), {{0, kNoParent}, {2, 0}, {4, 0}}}});
  }
  // Rows of two groups each, in the order of the file.
  const RowsOfFile pairs = file.rows(4, 2);
  CHECK((pairs.is_all && pairs.num_groups == 4));
  CHECK(pairs.longest.num_tokens == tokens(5) + tokens(9));
  CHECK(pairs.longest.documents.size() == 2);
}

TEST_CASE("rows of rollouts: a file that may have other rows is not all") {
  const File file({5, 9});
  const RowsOfFile grows = file.rows(3);
  CHECK((!grows.is_all && grows.num_groups == 2 && grows.longest.num_labels == 10));
  CHECK_FALSE(file.rows(2, 1, /*max_staleness=*/4).is_all);
  file.add("no rollout");
  file.add(R"({"group": 8, "id": "a", "token_ids": [1, 2], "mask": [0, 1], "reward": 0})");
  file.add(R"({"group": 8, "parent": "b", "token_ids": [1, 2], "mask": [0, 1], "reward": 0})");
  const RowsOfFile bad = file.rows(3);  // the third group's links are bad
  CHECK((!bad.is_all && bad.num_groups == 0));
  std::ofstream(file.path, std::ios::trunc).close();
  CHECK((!file.rows(1).is_all && file.rows(1).num_groups == 0));
  PolicySettings missing;
  missing.rollouts = file.folder.path + "/none.jsonl";
  CHECK_FALSE(rows_of_file({missing, 20, 1}, {}, 1).is_all);
}

TEST_CASE("rows of rollouts: any rollouts share nothing") {
  PolicySettings policy;
  policy.num_generations = 3;
  const RowLengths row = row_of_any_rollouts({policy, /*cutoff_len=*/20, /*num_groups=*/2});
  CHECK(row.num_tokens == 120);
  CHECK(row.num_labels == 6 * 19);
  CHECK(row.documents == std::vector<Document>(6, Document{20}));
}

}  // namespace with_rows_of_rollouts
}  // namespace
}  // namespace longspan
