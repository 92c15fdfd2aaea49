#include "longspan/data/example_encoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "longspan/config/config.h"
#include "longspan/data/describe_sample.h"
#include "longspan/data/parallel_rows.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

/// A trained tokenizer (with chatml's special tokens), and rows for it.
class Rows {
 public:
  explicit Rows(const std::string& stage) : folder_(stage), config(folder_.config()) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Question " + std::to_string(i * 37) + " is answered.\n";
    train_byte_level_bpe({folder_.write("text.txt", text)}, 300, folder_.path() + "/tokenizer");
    tokenizer = Tokenizer::load(folder_.path() + "/tokenizer");
    config.data.chat_template = "chatml";
  }
  void add(const std::string& question, const std::string& answer,
           const std::optional<std::string>& rejected = std::nullopt, bool desirable = true) {
    Conversation& row = rows.emplace_back();
    row.messages = {{Role::kUser, question}};
    if (config.method.stage != "pt") row.messages.push_back({Role::kAssistant, answer});
    if (rejected) row.rejected = {Role::kAssistant, *rejected};
    row.desirable = desirable;
    row.source = "rows, row " + std::to_string(rows.size());
  }
  EncodedExamples encode(int64_t vocab_size = INT64_MAX) const {
    return encode_examples(
        {config.data, stage_of(config.method), tokenizer, local_time_now(), vocab_size}, rows);
  }
  std::string complaint(int64_t vocab_size = INT64_MAX) const {
    try {
      encode(vocab_size);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  std::string text(const std::vector<int32_t>& ids) const { return tokenizer.decode(ids); }
  /// Returns the trained text.
  std::string trained(const Sample& sample) const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < sample.labels.size(); ++i) {
      if (sample.labels[i] == kIgnoreLabel) continue;
      CHECK(sample.labels[i] == sample.input_ids[i]);
      ids.push_back(sample.labels[i]);
    }
    return tokenizer.decode(ids);
  }

 private:
  DatasetFolder folder_;

 public:
  Config config;
  Tokenizer tokenizer;
  std::vector<Conversation> rows;
};

int64_t num_ignored(const Sample& sample) {
  return std::ranges::count(sample.labels, static_cast<int32_t>(kIgnoreLabel));
}

const std::string kAsks = "<|im_start|>user\n", kAsked = "<|im_end|>\n<|im_start|>assistant\n",
                  kEnds = "<|im_end|>\n";

}  // namespace

TEST_CASE("pairs: both documents hold the question, each its own answer") {
  Rows rows("dpo");
  rows.add("Question", "good answer", "bad");
  rows.config.data.default_system = "Be brief.";
  const EncodedExamples encoded = rows.encode();
  REQUIRE(encoded.examples.size() == 1);
  CHECK(!encoded.packing);
  const std::vector<Sample>& documents = encoded.examples[0].documents;
  REQUIRE(documents.size() == 2);
  const std::string asked = "<|im_start|>system\nBe brief." + kEnds + kAsks + "Question" + kAsked;
  CHECK(rows.text(documents[0].input_ids) == asked + "good answer" + kEnds);
  CHECK(rows.text(documents[1].input_ids) == asked + "bad" + kEnds);
  CHECK(rows.trained(documents[0]) == "good answer" + kEnds);
  CHECK(rows.trained(documents[1]) == "bad" + kEnds);
  const std::string described = describe_example(encoded.examples[0], "dpo", rows.tokenizer);
  CHECK_SAYS(described, "=== chosen ===\n");
  CHECK_SAYS(described, "\n=== rejected ===\n");
  CHECK_SAYS(described, "--- trained ---\nbad<|im_end|>\n");
}

TEST_CASE("pairs: the longer answer says how both are cut; earlier answers are not trained") {
  Rows rows("rm");
  rows.add(std::string(60, 'q'), std::string(10, 'a'), std::string(90, 'b'));
  rows.rows[0].messages.insert(rows.rows[0].messages.begin(),
                               {{Role::kUser, "x"}, {Role::kAssistant, "y"}});
  std::vector<Sample> whole = rows.encode().examples[0].documents;
  CHECK(rows.trained(whole[0]) == std::string(10, 'a') + kEnds);
  rows.config.data.cutoff_len = 70;
  const std::vector<Sample> cut = rows.encode().examples[0].documents;
  CHECK(cut[1].input_ids.size() == 70);
  CHECK(num_ignored(cut[0]) == num_ignored(cut[1]));
  CHECK(num_ignored(cut[0]) < num_ignored(whole[0]));
  CHECK(cut[1].input_ids.size() - num_ignored(cut[1]) > 30);    // half of the budget and more
  CHECK(rows.trained(cut[0]) == std::string(10, 'a') + kEnds);  // short enough to stay whole
  rows.config.data.cutoff_len = 1;
  CHECK_SAYS(rows.complaint(), "row 1: no token of the chosen answer is trained: cutoff_len 1");
}

TEST_CASE("kto: the answer of the row before beside each question") {
  Rows rows("kto");
  rows.add("first", "one", {}, true);
  rows.add("second", "two", {}, false);
  rows.add("third", "three", {}, true);
  const EncodedExamples encoded = rows.encode();
  const char* questions[] = {"first", "second", "third"};
  const char* answers[] = {"one", "two", "three"};
  for (int i = 0; i < 3; ++i) {
    const std::vector<Sample>& documents = encoded.examples[i].documents;
    REQUIRE(documents.size() == 2);
    CHECK(rows.text(documents[0].input_ids) == kAsks + questions[i] + kAsked + answers[i] + kEnds);
    CHECK(rows.text(documents[1].input_ids) ==
          kAsks + questions[i] + kAsked + answers[(i + 2) % 3] + kEnds);
    CHECK(rows.trained(documents[1]) == answers[(i + 2) % 3] + kEnds);
    CHECK(encoded.examples[i].desirable == (i != 1));
  }
  CHECK_SAYS(describe_example(encoded.examples[1], "kto", rows.tokenizer), "=== answer (bad) ===");
  rows.rows.resize(1);
  CHECK_SAYS(rows.complaint(), "rows, row 1: stage kto needs at least two rows");
}

TEST_CASE("pt: texts in blocks, whole texts, and what is left out") {
  Rows rows("pt");
  for (const char* text : {"Question 37 is answered.", "", "Question 74", "is answered.\n"}) {
    rows.add(text, "");
  }
  std::vector<int32_t> all;
  for (const Conversation& row : rows.rows) {
    const auto ids = rows.tokenizer.encode(row.messages[0].content + "<|im_end|>");
    all.insert(all.end(), ids.begin(), ids.end());
  }
  const int64_t size = std::ssize(all);
  rows.config.data.cutoff_len = 7;
  EncodedExamples packed = rows.encode();
  REQUIRE(std::ssize(packed.examples) == size / 7);
  for (int64_t i = 0; i < size / 7; ++i) {
    const Sample& block = packed.examples[i].documents[0];
    CHECK(block.input_ids == std::vector<int32_t>(all.begin() + 7 * i, all.begin() + 7 * i + 7));
    CHECK(block.labels == block.input_ids);
  }
  CHECK(packed.packing->num_dropped == size % 7);
  CHECK(packed.packing->rows_before == 4);
  CHECK(packed.packing->empty_after() == 0);

  rows.config.data.cutoff_len = size + 1;
  packed = rows.encode();
  REQUIRE(packed.examples.size() == 1);
  CHECK(packed.examples[0].documents[0].input_ids == all);
  CHECK(packed.packing->num_dropped == 0);

  rows.config.data.packing = false;
  rows.config.data.cutoff_len = 5;
  const EncodedExamples whole = rows.encode();
  CHECK(!whole.packing);
  REQUIRE(whole.examples.size() == 3);  // a blank line trains nothing
  CHECK(whole.examples[0].documents[0].input_ids ==
        std::vector<int32_t>(all.begin(), all.begin() + 5));
  rows.rows = {rows.rows[1]};
  CHECK_SAYS(rows.complaint(), "there is no text in this row");
}

TEST_CASE("pt: the token that ends a text") {
  Rows rows("pt");
  rows.add("x", "");
  const auto last = [&] {
    return rows.text({rows.encode().examples[0].documents[0].input_ids.back()});
  };
  CHECK(last() == "<|im_end|>");
  rows.config.data.chat_template = "";  // the tokenizer's own eos_token
  CHECK(last() == rows.tokenizer.eos_token());
  rows.config.data.chat_template = "llama3";
  CHECK_SAYS(rows.complaint(),
             "no token <|end_of_text|> to end a text with: leave template: llama3");
}

TEST_CASE("sft, questions to answer: one that leaves no room is a bad row") {
  Rows rows("sft");
  rows.config.data.asks_rows = true;
  rows.config.data.packing = false;
  rows.add("Question", "answer");
  rows.add("Question 37 is answered. Question 74 is answered. Question 111 is answered.", "yes");
  const auto encode = [&](int64_t max_positions) {
    return encode_examples({rows.config.data, stage_of(rows.config.method), rows.tokenizer,
                            local_time_now(), INT64_MAX, nullptr, max_positions},
                           rows.rows);
  };
  const EncodedExamples all = encode(INT64_MAX);
  REQUIRE(all.examples.size() == 2);
  const int64_t asked = num_ignored(all.examples[1].documents[0]);
  REQUIRE(asked > num_ignored(all.examples[0].documents[0]));
  CHECK(encode(asked + 1).examples.size() == 2);
  const std::string told =
      "rows, row 2: the question has " + std::to_string(asked) + " tokens, and the model takes";
  CHECK_THROWS_WITH_AS(encode(asked), doctest::Contains(told.c_str()), UserError);
  rows.config.data.on_bad_row = "skip";
  CHECK(encode(asked).examples.size() == 1);
}

TEST_CASE("sft: packing and neat_packing hold the rows' tokens; a token the model lacks") {
  Rows rows("sft");
  for (int i = 0; i < 9; ++i)
    rows.add("Question " + std::to_string(i), std::string(1 + i * 7, 'a'));
  rows.config.data.cutoff_len = 128;
  const EncodedExamples plain = rows.encode();
  REQUIRE(plain.examples.size() == 9);
  CHECK(!plain.packing);
  int64_t num_tokens = 0;
  for (const Example& example : plain.examples)
    num_tokens += std::ssize(example.documents[0].input_ids);
  for (const bool neat : {false, true}) {
    rows.config.data.packing = true;
    rows.config.data.neat_packing = neat;
    const EncodedExamples packed = rows.encode();
    CHECK(packed.examples.size() < 9);
    CHECK((packed.examples[0].documents.size() > 1) == neat);
    int64_t packed_tokens = 0;
    for (const Example& example : packed.examples) {
      int64_t length = 0;
      for (const Sample& document : example.documents) length += std::ssize(document.input_ids);
      CHECK(length <= 128);
      packed_tokens += length;
    }
    CHECK(packed_tokens == num_tokens);
    CHECK(packed.packing->rows_before == 9);
  }
  const int64_t known = rows.tokenizer.vocab_size();
  CHECK(rows.complaint(known) == "");
  CHECK_SAYS(rows.complaint(3), "rows, row 1: token ");
}

TEST_CASE(
    "qwen3: empty thoughts where an answer has none, none in history where the last is trained") {
  Rows rows("sft");
  rows.config.data.chat_template = "qwen3";
  const std::string thought = "<think>\nhm\n</think>\n\n", none = "<think>\n\n</think>\n\n";
  rows.add("a", thought + "b");
  rows.rows[0].messages.push_back({Role::kUser, "c"});
  rows.rows[0].messages.push_back({Role::kAssistant, "d"});
  const auto trained = [&] { return rows.trained(rows.encode().examples[0].documents[0]); };
  const auto whole = [&] { return rows.text(rows.encode().examples[0].documents[0].input_ids); };
  CHECK(trained() == thought + "b" + kEnds + none + "d" + kEnds);
  rows.config.data.enable_thinking = false;
  CHECK(trained() == "b" + kEnds + "d" + kEnds);
  CHECK(whole() ==
        kAsks + "a" + kAsked + none + "b" + kEnds + kAsks + "c" + kAsked + none + "d" + kEnds);
  rows.config.data.enable_thinking = true;
  rows.config.data.mask_history = true;
  CHECK(trained() == none + "d" + kEnds);
  CHECK(whole() == kAsks + "a" + kAsked + "b" + kEnds + kAsks + "c" + kAsked + none + "d" + kEnds);
}

TEST_CASE("rows that were cut are counted, with the tokens that they lost") {
  for (const char* stage : {"pt", "sft", "dpo", "rm", "kto"}) {
    CAPTURE(stage);
    Rows rows(stage);
    const std::string kind = stage;
    const bool pairs = kind == "dpo" || kind == "rm";
    rows.config.data.packing = false;
    for (int i = 0; i < 4; ++i) {
      const std::string answer(i == 2 ? 40 : 5, 'b');
      rows.add(kind == "pt" ? answer : "a", answer,
               pairs ? std::optional<std::string>("c") : std::nullopt);
    }
    rows.config.data.cutoff_len = 1000;
    CHECK(rows.encode().cut.text(1000) == "");
    const auto tokens = [](const Example& example) {
      int64_t sum = 0;
      for (const Sample& document : example.documents) sum += std::ssize(document.input_ids);
      return sum;
    };
    const std::vector<Example> whole = rows.encode().examples;
    const int64_t limit = std::ssize(whole[2].documents[0].input_ids) - 7;
    rows.config.data.cutoff_len = limit;
    const CutReport cut = rows.encode().cut;
    CHECK(cut.num_rows == 4);
    CHECK(cut.num_cut == 1);
    CHECK(cut.num_lost == 7);
    CHECK(cut.longest == limit + 7);
    CHECK_SAYS(cut.text(limit), "1 of 4 rows was cut, 7 of ");
    CHECK_FALSE(has(cut.text(limit), "warning"));
    if (kind != "kto") {  // its second documents are no rows of the data
      int64_t all = 0;
      for (const Example& example : whole) all += tokens(example);
      CHECK(cut.num_tokens == all);
    }
    rows.config.data.cutoff_len = std::ssize(whole[0].documents[0].input_ids) - 2;
    CHECK_SAYS(rows.encode().cut.text(5), "warning: cutoff_len cuts nearly every row: 4 of 4");
  }
}

TEST_CASE("on_bad_row: rows of which nothing is trained are left out, in each stage") {
  for (const char* stage : {"sft", "dpo", "rm", "kto"}) {
    CAPTURE(stage);
    Rows rows(stage);
    const bool pairs = std::string(stage) == "dpo" || std::string(stage) == "rm";
    for (const char* answer : {"one", "two", "three", "four"}) {
      rows.add("a", answer, pairs ? std::optional<std::string>("c") : std::nullopt);
    }
    const EncodedExamples all = rows.encode();
    // A row may take an answer out of training, which then has no label.
    rows.rows[2].messages.back().is_trained = false;
    CHECK_SAYS(rows.complaint(), "the data: 1 of 4 rows cannot be used:\n  rows, row 3: no token");
    rows.config.data.on_bad_row = "skip";
    const EncodedExamples good = rows.encode();
    REQUIRE(good.examples.size() == 3);
    CHECK_SAYS(good.left_out, "1 of 4 rows left out");
    CHECK(good.cut.num_rows == 3);
    CHECK(rows.trained(good.examples[2].documents[0]) == "four" + kEnds);
    if (std::string(stage) == "kto") {
      // The answer of the row before, among the remaining rows.
      CHECK(rows.trained(good.examples[2].documents[1]) == "two" + kEnds);
      CHECK(rows.trained(all.examples[3].documents[1]) == "three" + kEnds);
      rows.rows.resize(3);
      rows.rows[0].messages.back().is_trained = false;
      CHECK_SAYS(rows.complaint(), "rows, row 2: stage kto needs at least two rows");
    }
  }
}

TEST_CASE("rows in parallel: each once; the first row's error is told") {
  Config config;
  for (const int64_t threads : {1, 4}) {
    config.data.preprocessing_num_workers = threads;
    std::vector<std::atomic<int>> calls(100);
    for_each_row_in_parallel(config.data, 100, [&](int64_t i) { ++calls[i]; });
    for (const auto& count : calls) CHECK(count == 1);
    for_each_row_in_parallel(config.data, 0, [&](int64_t) { FAIL("there is no row"); });
  }
  // Rows 5 and 6 fail at the same time. Row 5 is reported, whichever ends first.
  for (const bool first_is_late : {false, true}) {
    std::atomic<bool> second_runs{false};
    const auto pause = [](bool pauses) {
      if (pauses) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    try {
      for_each_row_in_parallel(config.data, 100, [&](int64_t i) {
        if (i == 5) {
          while (!second_runs) std::this_thread::yield();
          pause(first_is_late);
        } else if (i == 6) {
          second_runs = true;
          pause(!first_is_late);
        } else {
          return;
        }
        throw UserError("row " + std::to_string(i));
      });
      FAIL("nothing was thrown");
    } catch (const UserError& error) {
      CHECK(std::string(error.what()) == "row 5");
    }
  }
}

}  // namespace longspan
