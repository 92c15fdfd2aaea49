#include "longspan/rollouts/rollout_examples.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/testing/dataset_folder.h"

namespace longspan {
namespace {

constexpr int32_t kNo = kIgnoreLabel;

/// A prompt, two answers of one turn, and a second turn after the first of them.
RolloutGroup forked_group() {
  const auto rollout = [](const char* id, const char* parent, std::vector<int32_t> ids,
                          std::vector<bool> mask) {
    Rollout made{.id = id,
                 .group = "g",
                 .parent = parent,
                 .token_ids = std::move(ids),
                 .mask = std::move(mask),
                 .reward = 1.5,
                 .source = std::string("r.jsonl, ") + id};
    for (size_t i = 0; i < made.mask.size(); ++i) {
      const double token = made.token_ids[i];
      made.logprobs.push_back(made.mask[i] ? -token : 0);
      made.teacher_logprobs.push_back(made.mask[i] ? -2 * token : 0);
      made.advantages.push_back(made.mask[i] ? 10 * token : 0);
    }
    return made;
  };
  return {"g",
          {rollout("child", "first", {6, 7, 8}, {true, false, true}),
           rollout("first", "", {1, 2, 3}, {false, true, true}),
           rollout("second", "", {1, 2, 4}, {false, false, true})}};
}

std::vector<double> numbers_of(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

constexpr RolloutColumns kAllColumns{true, true, true};

}  // namespace

TEST_CASE("rollout examples: a document has its ancestors' tokens and its own labels") {
  BadRows bad;
  const RolloutExample encoded =
      encode_rollouts(forked_group(), {.cutoff_len = 6, .columns = kAllColumns}, bad);
  CHECK(bad.count() == 0);
  CHECK(encoded.kept == std::vector<int64_t>{0, 1, 2});
  CHECK(encoded.rewards == std::vector<double>{1.5, 1.5, 1.5});
  const std::vector<Sample>& documents = encoded.example.documents;
  REQUIRE(documents.size() == 3);
  CHECK(documents[0].input_ids == std::vector<int32_t>{1, 2, 3, 6, 7, 8});
  CHECK(documents[0].labels == std::vector<int32_t>{kNo, kNo, kNo, 6, kNo, 8});
  CHECK(documents[1].labels == std::vector<int32_t>{kNo, 2, 3});
  CHECK(documents[2].labels == std::vector<int32_t>{kNo, kNo, 4});
  // The parent's last token predicts the child's first token.
  CHECK(numbers_of(documents[0].columns.at(kSamplerLogprobs).values) ==
        std::vector<double>{0, 0, -6, 0, -8, 0});
  CHECK(numbers_of(documents[1].columns.at(kAdvantage).values) == std::vector<double>{20, 30, 0});
}

TEST_CASE("rollout examples: columns at a row's labels are the labels' values") {
  BadRows bad;
  const RolloutExample encoded =
      encode_rollouts(forked_group(), {.cutoff_len = 6, .columns = kAllColumns}, bad);
  const Batch row = collate_examples({&encoded.example});
  const at::Tensor rows_L = label_rows(row);
  const at::Tensor labels_L = row.labels_T.index_select(0, rows_L).to(at::kDouble);
  const auto column_L = [&](const char* name) {
    return row.columns.at(name).values.index_select(0, rows_L);
  };
  CHECK(numbers_of(labels_L) == std::vector<double>{6, 8, 2, 3, 4});
  CHECK(at::equal(column_L(kSamplerLogprobs), -labels_L));
  CHECK(at::equal(column_L(kTeacherLogprobs), -2 * labels_L));
  CHECK(at::equal(column_L(kAdvantage), 10 * labels_L));
}

TEST_CASE("rollout examples: truncated rollouts keep their documents without labels") {
  RolloutGroup group = forked_group();
  group.rollouts[1].is_truncated = true;
  BadRows bad;
  RolloutEncoding encoding{.cutoff_len = 6, .columns = kAllColumns};
  RolloutExample encoded = encode_rollouts(group, encoding, bad);
  CHECK(encoded.num_truncated == 1);
  CHECK(encoded.example.documents[1].labels == std::vector<int32_t>{kNo, 2, 3});
  encoding.masks_truncated = true;
  encoded = encode_rollouts(group, encoding, bad);
  CHECK(encoded.num_truncated == 1);
  REQUIRE(encoded.example.documents.size() == 3);
  CHECK(encoded.example.documents[1].labels == std::vector<int32_t>{kNo, kNo, kNo});
  CHECK(numbers_of(encoded.example.documents[1].columns.at(kAdvantage).values) ==
        std::vector<double>{0, 0, 0});
  // The continuation has labels of its own.
  CHECK(encoded.example.documents[0].labels[3] == 6);
}

TEST_CASE("rollout examples: too long rollouts are left out and named, and never cut") {
  BadRows bad;
  const RolloutExample encoded =
      encode_rollouts(forked_group(), {.cutoff_len = 5, .columns = {}}, bad);
  CHECK(encoded.kept == std::vector<int64_t>{1, 2});
  CHECK(encoded.rewards.size() == 2);
  CHECK(encoded.example.documents[0].columns.empty());
  CHECK(bad.count() == 1);
  CHECK_SAYS(bad.settle(OnBadRow::kSkip, "the rollouts", 3),
             "r.jsonl, child: the rollout has 6 tokens with those of its parents, more than "
             "cutoff_len 5; rollouts are not cut");
}

TEST_CASE("rollout examples: columns of all rollouts or of none") {
  RolloutGroup group = forked_group();
  CHECK(columns_of({group}) == kAllColumns);
  group.rollouts[1].logprobs.clear();
  const auto complaint = [](auto work) -> std::string {
    try {
      work();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  CHECK_SAYS(complaint([&] { columns_of({group}); }),
             "r.jsonl, first: logprobs is missing, and r.jsonl, child has it");
  BadRows bad;
  CHECK_SAYS(
      complaint([&] { encode_rollouts(group, {.cutoff_len = 6, .columns = kAllColumns}, bad); }),
      "r.jsonl, first: logprobs is missing, and the run needs it");
  group.rollouts[0].logprobs.clear();
  group.rollouts[2].logprobs.clear();
  CHECK(columns_of({group}) ==
        RolloutColumns{.sampler_logprobs = false, .teacher_logprobs = true, .advantages = true});
  group.rollouts[0].reward.reset();
  const RolloutExample encoded = encode_rollouts(group, {.cutoff_len = 6, .columns = {}}, bad);
  CHECK(encoded.rewards.empty());
}

}  // namespace longspan
