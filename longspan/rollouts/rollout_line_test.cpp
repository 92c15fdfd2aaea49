#include "longspan/rollouts/rollout_line.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "longspan/data/turns.h"
#include "longspan/rollouts/rollout_file.h"
#include "longspan/testing/dataset_folder.h"
#include "longspan/testing/temporary_folder.h"
#include "longspan/text/tokenizer.h"

namespace longspan {
namespace {

Rollout parsed_line(const std::string& line, RolloutRules rules = {.vocab_size = 100}) {
  return parse_rollout(line, "r.jsonl", 7, rules);
}

std::string complaint_of_line(const std::string& line, RolloutRules rules = {.vocab_size = 100}) {
  try {
    parsed_line(line, rules);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// A line with tokens 5 (prompt), 6 and 7 (answer), and more fields.
std::string with_fields(const std::string& fields, const std::string& mask = "[0, 1, 1]") {
  return R"({"group": "g", "token_ids": [5, 6, 7], "mask": )" + mask +
         (fields.empty() ? "" : ", " + fields) + "}";
}

Rollout full_rollout() {
  return {.id = "b\xc3\xa9",
          .group = "7",
          .parent = "a",
          .token_ids = {4, 5, 6, 7},
          .mask = {false, true, false, true},
          .logprobs = {0, -0.1, 0, -1e-300},
          .teacher_logprobs = {0, -0.30000000000000004, 0, -12},
          .reward = 1.25,
          .rewards = {{"format", 0.25}, {"number", 1}},
          .advantages = {0, 0.5, 0, -2.0 / 3},
          .policy_version = 12,
          .is_truncated = true,
          .source = "r.jsonl, line 7"};
}

}  // namespace

TEST_CASE("rollout lines: a written rollout is read unchanged") {
  CHECK(parsed_line(write_rollout(full_rollout())) == full_rollout());
  const Rollout small{.id = "",
                      .group = "g",
                      .parent = "",
                      .token_ids = {1, 2},
                      .mask = {false, true},
                      .reward = -3,
                      .source = "r.jsonl, line 7"};
  CHECK(parsed_line(write_rollout(small)) == small);
  CHECK(write_rollout(full_rollout()).find('\n') == std::string::npos);
  Rollout infinite = small;
  infinite.reward = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(write_rollout(infinite), UserError);
}

TEST_CASE("rollout lines: forms of values") {
  const Rollout prompt = parsed_line(
      R"({"group": 3, "id": 4, "prompt_ids": [5], "completion_ids": [6, 7], "reward": 2})");
  CHECK(prompt.group == "3");
  CHECK(prompt.id == "4");
  CHECK(prompt.token_ids == std::vector<int32_t>{5, 6, 7});
  CHECK(prompt.mask == std::vector<bool>{false, true, true});
  CHECK(prompt.reward == 2);
  // A number for each token, or for each trained token; numbers of other tokens do not count.
  const std::vector<double> logprobs{0, -1, -2};
  CHECK(parsed_line(with_fields(R"("reward": 0, "logprobs": [-1, -2])")).logprobs == logprobs);
  CHECK(parsed_line(with_fields(R"("reward": 0, "logprobs": [null, -1, -2])")).logprobs ==
        logprobs);
  CHECK(parsed_line(with_fields(R"("reward": 0, "logprobs": [-9, -1, -2])")).logprobs == logprobs);
  CHECK(parsed_line(with_fields(R"("advantage": 3)", "[false, true, false]")).advantages ==
        std::vector<double>{0, 3, 0});
  CHECK(parsed_line(with_fields(R"("advantage": [3, -4])")).advantages ==
        std::vector<double>{0, 3, -4});
  CHECK(parsed_line(with_fields(R"("rewards": {"a": 1, "b": 0.5})")).reward == 1.5);
  CHECK(parsed_line(with_fields(R"("rewards": {"a": 1}, "reward": 7)")).reward == 7);
  CHECK(parsed_line(with_fields(R"("reward": 1, "finish_reason": "length")")).is_truncated);
  CHECK(!parsed_line(with_fields(R"("reward": 1, "finish_reason": "stop")")).is_truncated);
  CHECK(parsed_line(with_fields(R"("reward": 1, "truncated": true)")).is_truncated);
  CHECK(!parsed_line(with_fields(""), {.vocab_size = 100, .needs_reward = false}).reward);
  const Rollout waits = parsed_line(with_fields(R"("rewards": {"environment": 3})"),
                                    {.needs_reward = false, .sums_rewards = false});
  CHECK(!waits.reward);
  CHECK(waits.rewards.at("environment") == 3);
  // The first token of a continuation is predicted by the parent's last token.
  CHECK(parsed_line(with_fields(R"("reward": 1, "parent": "a")", "[1, 1, 1]")).mask[0]);
}

TEST_CASE("rollout lines: each fault is one sentence with the place") {
  const auto says = [](const std::string& fields, const std::string& part,
                       const std::string& mask = "[0, 1, 1]") {
    const std::string complaint = complaint_of_line(with_fields(fields, mask));
    CHECK_SAYS(complaint, part);
    CHECK_MESSAGE(complaint.starts_with("r.jsonl, line 7: "), complaint);
    CHECK_MESSAGE(complaint.find('\n') == std::string::npos, complaint);
  };
  says(R"("reward": 1, "logprob": [-1, -1])",
       "logprob is no field of a rollout; the nearest field is logprobs");
  says(R"("reward": 1, "reward": 2)", "\"reward\" is given twice");
  says("", "there is neither reward nor advantage");
  says(R"("reward": NaN)", "broken JSON");
  says(R"("reward": 1e999)", "beyond what a double holds");
  says(R"("reward": "1")", "reward must be a number");
  says(R"("reward": 1, "logprobs": [-1])",
       "logprobs has 1 number; wanted is one for each of the 3 tokens, or one for each of the 2");
  says(R"("reward": 1, "logprobs": [-1, 0.25])", "logprobs of token 2 is 0.25");
  says(R"("reward": 1, "logprobs": [-1, "x"])", "logprobs[1] is \"x\"");
  says(R"("reward": 1, "logprobs": [-1, null])", "logprobs[1] is null");
  says(R"("reward": 1, "teacher_logprobs": [-1, 0.25])", "teacher_logprobs of token 2 is 0.25");
  says(R"("advantage": [1, 2, 3, 4])", "advantage has 4 numbers");
  says(R"("advantage": "high")", "advantage must be a number");
  says(R"("reward": 1, "rewards": {"a": null})", "the reward \"a\" is null");
  says(R"("rewards": {})", "rewards has no number");
  says(R"("reward": 1, "policy_version": -1)", "policy_version is -1");
  says(R"("reward": 1, "policy_version": 1.5)", "policy_version must be a whole number");
  says(R"("reward": 1, "finish_reason": "abort")", "finish_reason is \"abort\"; known are");
  says(R"("reward": 1, "finish_reason": "stop", "truncated": true)", "remove one of the two");
  says(R"("reward": 1, "id": 1.5)", "id must be a text or a whole number");
  says(R"("reward": 1, "id": "")", "id is empty");
  says(R"("reward": 1, "prompt_ids": [1])", "prompt_ids stands beside token_ids");
  says(R"("reward": 1, "completion": "x")", "token_ids stands beside completion");
  says(R"("reward": 1)", "no token is trained", "[0, 0, 0]");
  says(R"("reward": 1)", "the first token of the conversation", "[1, 1, 1]");
  says(R"("reward": 1)", "mask has 2 values for 3 tokens", "[0, 1]");
  says(R"("reward": 1)", "mask[1] is 2; wanted is 0, 1", "[0, 2, 1]");
  const auto line_says = [](const std::string& line, const std::string& part) {
    CHECK_SAYS(complaint_of_line(line), part);
  };
  line_says(R"({"token_ids": [1, 2], "mask": [0, 1], "reward": 1})", "group is missing");
  line_says(R"({"group": 1, "token_ids": [1, -2], "mask": [0, 1], "reward": 1})",
            "token_ids[1] is -2; wanted is a token id from 0 to 99");
  line_says(R"({"group": 1, "token_ids": [1, 100], "mask": [0, 1], "reward": 1})",
            "token_ids[1] is 100");
  line_says(R"({"group": 1, "token_ids": [1, 1.0], "mask": [0, 1], "reward": 1})",
            "token_ids[1] is 1.0");
  line_says(R"({"group": 1, "token_ids": [1, 2], "reward": 1})", "mask is missing");
  line_says(R"({"group": 1, "token_ids": [], "mask": [], "reward": 1})", "there are no tokens");
  line_says(R"({"group": 1, "completion_ids": [1], "reward": 1})", "prompt_ids is missing");
  line_says(R"({"group": 1, "reward": 1})", "there are no tokens; give token_ids and mask");
  line_says(R"({"group": 1, "prompt": "a", "completion": "b", "reward": 1})",
            "only token ids are read here");
}

namespace {

/// A small tokenizer with chatml's tokens.
class TextRollouts {
 public:
  explicit TextRollouts(const std::string& name = "chatml") {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Question " + std::to_string(i * 37) + " is answered.\n";
    train_byte_level_bpe({folder_.write("text.txt", text)}, 300, folder_ / "tokenizer");
    tokenizer_ = Tokenizer::load(folder_ / "tokenizer");
    turns_ = name.empty() ? make_model_template(tokenizer_, std::nullopt, {}, local_time_now())
                          : make_named_template(name, tokenizer_, std::nullopt, {}, {});
  }
  RolloutRules rules() const {
    return {.vocab_size = tokenizer_.vocab_size(), .tokenizer = &tokenizer_, .turns = turns_.get()};
  }
  Rollout parse(const std::string& fields) const {
    return parsed_line(R"({"group": 1, "reward": 1, )" + fields + "}", rules());
  }
  std::string complaint(const std::string& fields) const {
    return complaint_of_line(R"({"group": 1, "reward": 1, )" + fields + "}", rules());
  }
  /// Returns "untrained|trained|untrained".
  std::string marked(const std::string& fields) const {
    const Rollout rollout = parse(fields);
    std::string text;
    std::vector<int32_t> part;
    for (size_t i = 0; i < rollout.token_ids.size(); ++i) {
      if (i > 0 && rollout.mask[i] != rollout.mask[i - 1]) {
        text += tokenizer_.decode(part) + "|";
        part.clear();
      }
      part.push_back(rollout.token_ids[i]);
    }
    return text + tokenizer_.decode(part);
  }

 private:
  testing::TemporaryFolder folder_;
  Tokenizer tokenizer_;
  std::unique_ptr<TurnEncoder> turns_;
};

const std::string kAsksText = "<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n|";

}  // namespace

TEST_CASE("rollout lines: texts are encoded as conversations of a data set are") {
  for (const char* name : {"chatml", ""}) {
    CAPTURE(name);
    const TextRollouts texts(name);
    const std::string ended = kAsksText + "Yes.<|im_end|>";
    CHECK(texts.marked(R"("prompt": "Q?", "completion": "Yes.")").starts_with(ended));
    CHECK(texts.marked(R"("messages": [{"role": "user", "content": "Q?"}], "completion": "Yes.")")
              .starts_with(ended));
    CHECK(texts
              .marked(R"("prompt": [{"role": "user", "content": "Q?"}],
                          "completion": [{"role": "assistant", "content": "Yes."}])")
              .starts_with(ended));
    // The policy has not sampled the end of a truncated answer.
    CHECK(texts.marked(R"("prompt": "Q?", "completion": "Yes.", "truncated": true)") ==
          kAsksText + "Yes.");
    // Earlier answers are part of the prompt.
    const std::string turns = texts.marked(
        R"("messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"},
                        {"role": "user", "content": "Q?"}], "completion": "Yes.")");
    CHECK(std::ranges::count(turns, '|') == std::ranges::count(ended, '|') + 8);
    CHECK_SAYS(turns, kAsksText + "Yes.");
  }
}

TEST_CASE("rollout lines: the examples of docs/rollouts.md") {
  const TextRollouts texts;
  const testing::TemporaryFolder folder;
  std::vector<std::string> notes;
  const std::string path = folder.write(
      "r.jsonl",
      R"({"group": "q1", "token_ids": [1, 15, 27, 9, 2], "mask": [0, 0, 1, 1, 1], "logprobs": [-0.2, -1.1, -0.03], "reward": 1}
{"group": "q1", "prompt_ids": [1, 15], "completion_ids": [27, 9, 2], "reward": 0}
{"group": "q1", "messages": [{"role": "user", "content": "2 + 2?"}], "completion": "4", "reward": 1}
{"group": 7, "id": "a", "token_ids": [1, 4, 5], "mask": [0, 1, 1], "reward": 1, "policy_version": 12}
{"group": 7, "id": "b", "parent": "a", "token_ids": [6, 8], "mask": [0, 1], "reward": 0.5, "truncated": true}
{"group": 8, "token_ids": [1, 5], "mask": [0, 1], "rewards": {"format": 0.2, "number": 1}, "finish_reason": "stop"}
{"group": 9, "token_ids": [1, 4, 5], "mask": [0, 1, 1], "advantage": [0.5, -0.1], "teacher_logprobs": [-0.7, -2.5]}
)");
  CHECK(read_rollouts(path, texts.rules(), OnBadRow::kStop, notes).size() == 7);
}

TEST_CASE("rollout lines: texts that cannot be encoded are refused") {
  const TextRollouts texts;
  const auto says = [&](const std::string& fields, const std::string& part) {
    CHECK_SAYS(texts.complaint(fields), part);
  };
  says(R"("prompt": "Q?", "completion": "")", "completion is empty");
  says(R"("completion": "A")", "give one of the two");
  says(R"("prompt": "Q?", "messages": [], "completion": "A")", "give one of the two");
  says(R"("messages": "Q?", "completion": "A")", "messages must be a list of messages");
  says(R"("messages": [], "completion": "A")", "messages must end with a question");
  says(R"("messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
          "completion": "A")",
       "messages must end with a question");
  says(R"("messages": [{"role": "user", "content": "Q"}, {"role": "user", "content": "Q"}],
          "completion": "A")",
       "message 2 is the user's, and an answer is due");
  says(R"("messages": [{"role": "human", "content": "Q"}], "completion": "A")",
       "the role is \"human\"");
  says(R"("messages": [{"role": "user", "content": "Q", "mood": "glad"}], "completion": "A")",
       "not read: mood");
  says(R"("prompt": "Q?", "completion": 3)", "completion must be a text");
  says(R"("prompt": "Q?", "completion": "A", "logprobs": [-1])",
       "logprobs has a number for each token, and the tokens of a text are not known");
  says(R"("prompt": "Q?", "completion": "A", "teacher_logprobs": [-1])", "teacher_logprobs has");
  says(R"("prompt": "Q?", "completion": "A", "advantage": [1])", "advantage has a number");
  says(R"("prompt": "Q?", "completion": "A", "parent": "x")", "parent belongs to token ids");
}

}  // namespace longspan
