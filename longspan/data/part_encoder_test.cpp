#include "longspan/data/part_encoder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/data/dataset.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/dataset_folder.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

using Places = std::vector<std::vector<std::vector<int32_t>>>;

/// Adds the tokens, labels and restarts of an example.
void add_to(Places& places, const Example& example) {
  auto& one = places.emplace_back();
  for (const Sample& document : example.documents) {
    one.push_back(document.input_ids);
    one.push_back(document.labels);
  }
  one.emplace_back(example.position_restarts.begin(), example.position_restarts.end());
}

/// Rows of many lengths, one of them bad, for stage pt, sft or dpo.
struct Rows {
  explicit Rows(const std::string& stage, int num_rows) : folder(stage), config(folder.config()) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Question " + std::to_string(i * 37) + " is answered.\n";
    train_byte_level_bpe({folder.write("text.txt", text)}, 300, folder.path() + "/tokenizer");
    tokenizer = Tokenizer::load(folder.path() + "/tokenizer");
    config.data.chat_template = "chatml";
    config.data.on_bad_row = "skip";
    config.data.cutoff_len = 48;
    for (int i = 0; i < num_rows; ++i) {
      Conversation& row = rows.emplace_back();
      row.source = "rows, row " + std::to_string(i + 1);
      row.messages = {{Role::kUser, std::to_string(i * 13) + std::string(i * 7 % 31, 'x')}};
      if (stage == "pt") continue;
      row.messages.push_back({Role::kAssistant, std::string(i * 5 % 41, 'y') + " is"});
      row.messages.back().is_trained = i != 5;
      if (stage == "dpo") row.rejected = {Role::kAssistant, "no"};
    }
  }

  DatasetFolder folder;
  Config config;
  Tokenizer tokenizer;
  std::vector<Conversation> rows;
};

}  // namespace

TEST_CASE("encoding in parts: the examples and reports of all rows at once") {
  const testing::TemporaryFolder folder;
  struct Way {
    const char* stage;
    bool packs, neat;
  };
  for (const Way& way :
       {Way{"pt", false, false}, Way{"pt", true, false}, Way{"sft", false, false},
        Way{"sft", true, false}, Way{"sft", true, true}, Way{"dpo", false, false}}) {
    for (const int num_rows : {1, 40}) {
      CAPTURE(way.stage);
      CAPTURE(way.packs);
      CAPTURE(num_rows);
      Rows rows(way.stage, num_rows);
      rows.config.data.packing = way.packs;
      rows.config.data.neat_packing = way.neat;
      const Stage& stage = stage_of(rows.config.method);
      const EncodedExamples whole =
          encode_examples({rows.config.data, stage, rows.tokenizer, local_time_now()}, rows.rows);
      Places expected, got;
      for (const Example& example : whole.examples) add_to(expected, example);
      const LocalTime time = local_time_now();
      PartEncoder encoder({rows.config.data, stage, rows.tokenizer, time}, folder.path,
                          [&](const Example& example) { add_to(got, example); });
      for (size_t begin = 0; begin < rows.rows.size(); begin += 7) {
        const size_t end = std::min(begin + 7, rows.rows.size());
        encoder.add({rows.rows.begin() + begin, rows.rows.begin() + end});
      }
      const EncodedExamples parts = encoder.finish();
      CHECK((got == expected));
      CHECK(parts.packing.has_value() == whole.packing.has_value());
      if (whole.packing) CHECK(parts.packing->text() == whole.packing->text());
      CHECK(parts.cut.text(48) == whole.cut.text(48));
      CHECK(parts.left_out == whole.left_out);
      CHECK(parts.chats == whole.chats);
    }
  }
}

TEST_CASE("encoding in parts: the error of all rows at once") {
  const testing::TemporaryFolder folder;
  Rows rows("sft", 12);
  rows.config.data.on_bad_row = "stop";
  rows.config.data.packing = true;
  const Stage& stage = stage_of(rows.config.method);
  const LocalTime time = local_time_now();
  PartEncoder encoder({rows.config.data, stage, rows.tokenizer, time}, folder.path,
                      [](const Example&) { FAIL("there are bad rows"); });
  encoder.add(rows.rows);
  CHECK_THROWS_WITH_AS(encoder.finish(), doctest::Contains("1 of 12 rows"), UserError);
}

TEST_CASE("reading in parts: all rows in order, however they are taken") {
  const testing::TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += std::string(4000, 'a' + i % 26) + std::to_string(i) + "\n";
  Config config;
  config.method.stage = "pt";
  config.data.dataset = folder.write("rows.txt", lines);
  const Stage& stage = stage_of(config.method);
  REQUIRE(reads_in_parts(config.data, stage, config.data.dataset));
  std::vector<std::string> notes, texts;
  int num_parts = 0;
  read_in_parts(config.data, stage, config.data.dataset, notes,
                [&](std::vector<Conversation> part) {
                  ++num_parts;
                  for (const Conversation& row : part)
                    texts.push_back(row.messages.front().content);
                });
  CHECK(num_parts > 2);
  std::vector<std::string> expected_notes, expected;
  for (const Conversation& row :
       read_conversations(config.data, stage, 0, config.data.dataset, expected_notes)) {
    expected.push_back(row.messages.front().content);
  }
  CHECK((texts == expected));
  CHECK(notes == expected_notes);
  // An error of the taker ends the reading.
  CHECK_THROWS_WITH_AS(
      read_in_parts(config.data, stage, config.data.dataset, notes,
                    [](const std::vector<Conversation>&) { throw UserError("enough"); }),
      "enough", UserError);
  config.data.val_size = 1;
  CHECK_FALSE(reads_in_parts(config.data, stage, config.data.dataset));
}

}  // namespace longspan
