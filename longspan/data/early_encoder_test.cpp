#include "longspan/data/early_encoder.h"

#include <doctest/doctest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {
namespace {

/// A data set of stage pt or sft, in several parts for the encoder.
struct EarlySet {
  explicit EarlySet(const std::string& stage, const std::vector<std::string>& lines)
      : folder(stage), config(folder.config()) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Question " + std::to_string(i * 37) + " is answered.\n";
    train_byte_level_bpe({folder.write("text.txt", text)}, 300, folder.path() + "/tokenizer");
    const std::string file = folder.path() + "/tokenizer/tokenizer.json";
    auto json = nlohmann::json::parse(std::ifstream(file));
    json["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
    std::ofstream(file) << json;
    tokenizer = Tokenizer::load(folder.path() + "/tokenizer");
    std::string rows;
    for (const std::string& line : lines) rows += line + "\n";
    folder.write("rows.jsonl", rows);
    folder.info(stage == "pt" ? R"({"file_name": "rows.jsonl", "columns": {"prompt": "text"}})"
                              : R"({"file_name": "rows.jsonl", "formatting": "openai"})");
    config.data.cutoff_len = 48;
    config.data.packing = false;
    if (stage == "sft") config.data.chat_template = "chatml";
  }

  std::unique_ptr<EarlyEncoder> encoder() {
    const EarlyJob job{config.data, stage_of(config.method), tokenizer, time, INT64_MAX, 7, true};
    return std::make_unique<EarlyEncoder>(job, notes, [](const std::vector<Conversation>&) {});
  }

  DatasetFolder folder;
  Config config;
  Tokenizer tokenizer;
  LocalTime time = local_time_now();
  std::vector<std::string> notes;
};

std::string text_line(const std::string& text) { return R"({"text": ")" + text + R"("})"; }

std::string chat_line(int weight) {
  return R"({"messages": [{"role": "user", "content": ")" + std::string(20000, 'x') +
         R"("}, {"role": "assistant", "content": "yes", "weight": )" + std::to_string(weight) +
         "}]}";
}

}  // namespace

TEST_CASE("early encoding: the examples and reports of encode_examples, in any order") {
  std::vector<std::string> lines;
  for (int i = 0; i < 24; ++i) {
    // Empty texts are no rows, and neither are the spaces that the tokenizer removes.
    lines.push_back(text_line(i % 5 == 2 ? "" : std::string(500 * i + 1, 'a' + i)));
  }
  std::string spaces;
  for (int i = 0; i < 60; ++i) spaces += "\u3000\u00a0 ";
  lines.push_back(text_line(spaces));
  EarlySet set("pt", lines);
  set.config.data.val_size = 4;
  const Stage& stage = stage_of(set.config.method);
  CHECK(why_rows_wait(set.config.data, stage).empty());
  const RunRows rows = read_run_rows(set.config.data, stage, 7);
  const std::unique_ptr<EarlyEncoder> encoder = set.encoder();
  CHECK_FALSE(encoder->has_too_few());
  bool finished = false;
  encoder->start("the note", [&] { finished = true; });
  const auto file = std::make_shared<const EarlyFile>(encoder->file().open());
  CHECK(file->record(encoder->num_rows()) == "the note");
  int64_t begin = 0;
  for (const auto* part : {&rows.train, &rows.eval}) {
    const EncodedExamples whole =
        encode_examples({set.config.data, stage, set.tokenizer, set.time}, *part);
    const bool trains = part == &rows.train;
    REQUIRE(std::ssize(whole.examples) ==
            (trains ? encoder->num_train() : encoder->num_rows() - encoder->num_train()));
    const EarlyExamples early(file, begin, std::ssize(whole.examples));
    for (int64_t i = early.size() - 1; i >= 0; --i) {
      REQUIRE(encoder->wait_for({begin + i}));
      const ExamplePointer one = early.example(i);
      CHECK(one->number == begin + i);
      CHECK((one->documents[0].input_ids == whole.examples[i].documents[0].input_ids));
      CHECK((one->documents[0].labels == whole.examples[i].documents[0].labels));
    }
    begin += early.size();
    if (trains) continue;
    REQUIRE(encoder->wait_for_end());
    CHECK(encoder->eval_report().cut.text(48) == whole.cut.text(48));
  }
  CHECK(finished);
}

TEST_CASE("early encoding: a bad row ends it, and so does the end of the run") {
  std::vector<std::string> lines(30, chat_line(1));
  lines[29] = chat_line(0);
  EarlySet set("sft", lines);
  const std::unique_ptr<EarlyEncoder> encoder = set.encoder();
  CHECK(encoder->num_train() == 30);
  bool finished = false;
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> is_held = held;
  encoder->start("", [&finished, held = std::move(held)] { finished = true; });
  CHECK_THROWS_WITH_AS(encoder->wait_for_end(), doctest::Contains("line 30: no token of the row"),
                       UserError);
  CHECK(is_held.expired());  // as the lock of a kept file
  // Also for rows that are there.
  CHECK_THROWS_AS(encoder->wait_for({0}), UserError);
  CHECK_FALSE(finished);
  const std::unique_ptr<EarlyEncoder> other = set.encoder();
  CHECK(other->fingerprint() == encoder->fingerprint());
  other->start("", [] {});
}

TEST_CASE("early file: a record whose size is beyond the file is refused") {
  const DatasetFolder folder("pt");
  EarlyFileWriter writer(folder.path(), /*num_records=*/1);
  writer.write(0, "a record");
  const EarlyFile file(writer.open());
  CHECK(file.record(0) == "a record");
  std::fstream raw(writer.path(), std::ios::in | std::ios::out | std::ios::binary);
  const int64_t size = int64_t{1} << 60;
  raw.seekp(sizeof(int64_t)).write(reinterpret_cast<const char*>(&size), sizeof(size)).flush();
  CHECK_THROWS_WITH_AS(file.record(0), doctest::Contains("row 0 has another checksum"), UserError);
}

TEST_CASE("early encoding: rows that depend on others wait") {
  EarlySet set("sft", {chat_line(1)});
  const auto why = [&] { return why_rows_wait(set.config.data, stage_of(set.config.method)); };
  CHECK(why().empty());
  set.config.data.on_bad_row = "skip";
  CHECK_SAYS(why(), "on_bad_row: skip");
  set.config.data.on_bad_row = "stop";
  set.config.data.packing = true;
  CHECK_SAYS(why(), "packing needs the lengths");
}

}  // namespace longspan
