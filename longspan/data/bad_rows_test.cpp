#include "longspan/data/bad_rows.h"

#include <doctest/doctest.h>

#include "longspan/config/config.h"
#include "longspan/registers/stage.h"
#include "longspan/testing/dataset_folder.h"

namespace longspan {

namespace {

using Texts = std::vector<std::string>;

/// Rows 0 to 19. Every third is broken, without text, or no object, in turn.
std::string lines_with_bad_ones() {
  const Texts bad = {"{\"instruction\"", R"({"instruction": "a", "output": ""})", "7"};
  std::string lines;
  for (int i = 0; i < 20; ++i) {
    const std::string row = std::to_string(i);
    lines +=
        (i % 3 == 1 ? bad[i / 3 % 3] : "{\"instruction\": \"" + row + "\", \"output\": \"x\"}") +
        "\n";
  }
  return lines;
}

}  // namespace

TEST_CASE("bad rows: all are counted, the first five shown") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.jsonl"})");
  const std::string path = folder.write("d.jsonl", lines_with_bad_ones());
  const std::string said = folder.complaint();
  CHECK_SAYS(said, "dataset d: 7 of 20 rows cannot be used:\n");
  CHECK_SAYS(said, "\n  " + path + ", line 2: broken JSON");
  CHECK_SAYS(said, "\n  " + path + ", line 5: the row has no answer (output is empty)");
  CHECK_SAYS(said, "\n  " + path + ", line 8: wanted is an object with columns, found number");
  CHECK_SAYS(said, ", line 14: ");
  CHECK_FALSE(has(said, ", line 17: "));
  CHECK_SAYS(said, "\n  and 2 more\n");
  CHECK_SAYS(said, "on_bad_row: skip");
}

TEST_CASE("bad rows: what is proposed is said once, and what leads to it too") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.json", "formatting": "sharegpt"})");
  folder.write("d.json", R"([
    {"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"conversations": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}])");
  const std::string said = folder.complaint();
  const size_t first = said.find("for example\n");
  CHECK_MESSAGE(first != std::string::npos, said);
  CHECK_MESSAGE(said.find("for example", first + 1) == std::string::npos, said);
}

TEST_CASE("bad rows: skip leaves them out and says so") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.jsonl"})");
  folder.write("d.jsonl", lines_with_bad_ones());
  Config config = folder.config();
  config.data.on_bad_row = "skip";
  const RunRows rows =
      read_run_rows(config.data, stage_of(config.method), config.optimization.seed);
  CHECK(rows.train.size() == 13);
  CHECK(flat(rows.train[1]) == "u=2;a=x;");
  REQUIRE(rows.notes.size() == 1);
  CHECK_SAYS(rows.notes[0], "dataset d: 7 of 20 rows left out");
  CHECK_SAYS(rows.notes[0], ", line 2: broken JSON");
  // max_samples counts the good rows.
  config.data.max_samples = 3;
  CHECK(flat(read_conversations(config.data, stage_of(config.method), config.optimization.seed,
                                "d")) == Texts{"u=0;a=x;", "u=2;a=x;", "u=3;a=x;"});
  config.data.max_samples.reset();
  config.data.val_size = 4;
  CHECK(
      read_run_rows(config.data, stage_of(config.method), config.optimization.seed).notes.size() ==
      1);
  CHECK(
      read_run_rows(config.data, stage_of(config.method), config.optimization.seed).train.size() ==
      9);
  folder.write("d.jsonl", "{\n{\n");
  CHECK_THROWS_WITH_AS(
      read_run_rows(config.data, stage_of(config.method), config.optimization.seed),
      doctest::Contains("its only row cannot be used"), UserError);
}

TEST_CASE("bad rows: pairs and unpaired answers") {
  const auto skipped = [](const std::string& stage, const std::string& entry,
                          const std::string& rows) {
    const DatasetFolder folder(stage);
    folder.info(R"({"file_name": "d.json", )" + entry + "}");
    folder.write("d.json", rows);
    CHECK_SAYS(folder.complaint(), "dataset d: 1 of 3 rows cannot be used");
    Config config = folder.config();
    config.data.on_bad_row = "skip";
    return flat(
        read_conversations(config.data, stage_of(config.method), config.optimization.seed, "d"));
  };
  const std::string pairs =
      R"("ranking": true, "columns": {"prompt": "p", "chosen": "c", "rejected": "r"})";
  for (const char* stage : {"dpo", "rm"}) {
    CHECK(skipped(stage, pairs,
                  R"([{"p": "1", "c": "a", "r": "b"}, {"p": "2", "c": "a", "r": null},
                      {"p": "3", "c": "a", "r": "b"}])") == Texts{"u=1;a=a;r=b;", "u=3;a=a;r=b;"});
  }
  CHECK(skipped("kto", R"("columns": {"prompt": "p", "response": "a", "kto_tag": "t"})",
                R"([{"p": "1", "a": "a", "t": true}, {"p": "2", "a": "a", "t": "yes"},
                    {"p": "3", "a": "a", "t": false}])") == Texts{"u=1;a=a;", "u=3;a=a;"});
}

TEST_CASE("bad rows: a chat that ends with a question") {
  const DatasetFolder folder;
  folder.info(R"({"file_name": "d.json", "formatting": "sharegpt"})");
  folder.write(
      "d.json",
      R"([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
                                                {"from": "human", "value": "c"}]}])");
  CHECK_SAYS(folder.complaint(),
             "row 1: the chat ends with a question (message 3 of conversations is user's)");
  CHECK_SAYS(folder.complaint(), "Add the answer, or remove that message.");
}

}  // namespace longspan
