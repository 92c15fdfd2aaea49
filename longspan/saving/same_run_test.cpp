// Changes that a resumed run allows, and those that it refuses.
#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/saving/training_state.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

RunFile file_of(FileRole role, const std::string& name, uint64_t digest) {
  return {.role = role,
          .name = name,
          .path = "/data/" + name,
          .decides = role != FileRole::kEvaluationData,
          .stamp = {.size = 100, .mtime_ns = 1, .ctime_ns = 2, .inode = 3},
          .digest = digest};
}

RunIdentity some_run() {
  return {.stage = "sft",
          .finetuning_type = "lora",
          .trained = "t",
          .rows = "r",
          .num_rows = 24,
          .rows_per_step = 8,
          .seed = 42,
          .shuffled = true,
          .template_time = "2026-11-26T00:05:09.000007",
          .rope_scaling = "none",
          .settings = {{"learning_rate", "5e-05"}, {"lora_alpha", "16"}, {"lora_rank", "8"}},
          .contents = {file_of(FileRole::kModelWeights, "model.safetensors", 7),
                       file_of(FileRole::kTrainingData, "rows.json", 8),
                       file_of(FileRole::kEvaluationData, "held_out.json", 9)}};
}

/// Returns why the run cannot resume after this change; empty if it can.
std::string refusal(const std::function<void(RunIdentity& now)>& change) {
  RunIdentity now = some_run();
  change(now);
  try {
    require_same_run("checkpoint-5", some_run(), now, 8);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("same run: contents that decide are refused by the file's name") {
  const std::string weights = refusal([](RunIdentity& now) { now.contents[0].digest = 0xab; });
  for (const char* part :
       {"checkpoint-5 cannot go on", "/data/model.safetensors (model weights)",
        "has 100 bytes, XXH64 00000000000000ab now, and had 100 bytes, XXH64 0000000000000007",
        "overwrite_output_dir: true"}) {
    CHECK_MESSAGE(mentions(weights, part), weights);
  }
  const std::string data = refusal([](RunIdentity& now) {
    now.contents[1].digest = 1;
    now.rows = "other";
    now.settings[0].second = "1e-05";
  });
  CHECK(mentions(data, "/data/rows.json (training data) is not what it was"));
  CHECK(mentions(data, "Of the keys learning_rate was 5e-05, and is 1e-05."));
  CHECK(mentions(
      refusal([](RunIdentity& now) { now.contents.erase(now.contents.begin()); }),
      "model.safetensors (model weights) is not what it was when the run began: it is gone"));
}

TEST_CASE("same run: what does not decide, what lies elsewhere, what was only touched") {
  CHECK(refusal([](RunIdentity& now) { now.contents[2].digest = 1; }).empty());
  CHECK(refusal([](RunIdentity& now) {
          now.contents[0].decides = false;
          now.contents[0].digest = 1;
        }).empty());
  CHECK(refusal([](RunIdentity& now) {
          now.contents[1].path = "/elsewhere/other.json";
          now.contents[1].name = "other.json";
          now.contents[1].stamp = {.size = 100, .mtime_ns = 7, .ctime_ns = 7, .inode = 7};
        }).empty());
  CHECK(refusal([](RunIdentity& now) { now.contents.clear(); }).empty());  // not on this rank
}

TEST_CASE("same run: data and tokenizers that make the same rows are named") {
  RunIdentity then = some_run();
  then.contents.push_back(file_of(FileRole::kTokenizer, "tokenizer_config.json", 4));
  RunIdentity now = then;
  now.contents[1].digest = 1;
  now.contents[3].digest = 1;
  CHECK_NOTHROW(require_same_run("c", then, now, 8));
  const std::vector<std::string> lines = changes_since("c", then, now, 6);
  REQUIRE(lines.size() == 2);
  CHECK(mentions(lines[0], "/data/tokenizer_config.json (tokenizer) is not what it was"));
  CHECK(mentions(lines[1], "/data/rows.json (training data) is not what it was"));
  for (const std::string& line : lines) CHECK(line.ends_with(" The rows are the same."));
}

TEST_CASE("same run: with a fingerprint of texts, the files that encode them decide") {
  RunIdentity then = some_run();
  then.rows = std::string(kTextsOfRows) + "1";
  then.contents.push_back(file_of(FileRole::kTokenizer, "tokenizer_config.json", 4));
  RunIdentity now = then;
  CHECK_NOTHROW(require_same_run("c", then, now, 8));
  now.contents[3].digest = 1;
  CHECK_THROWS_WITH_AS(require_same_run("c", then, now, 8),
                       doctest::Contains("tokenizer_config.json (tokenizer) is not what it was"),
                       UserError);
}

TEST_CASE("same run: what could not be read is named, not refused") {
  RunIdentity then = some_run(), now = some_run();
  then.contents[0].digest = std::nullopt;
  CHECK_NOTHROW(require_same_run("c", then, now, 8));
  const std::vector<std::string> lines = changes_since("c", then, now, 6);
  REQUIRE(lines.size() == 1);
  CHECK(mentions(lines[0],
                 "model.safetensors (model weights) could not be read when the run began: "));
  CHECK_NOTHROW(require_same_run("c", now, then, 8));
  CHECK(changes_since("c", now, then, 6).empty());  // read_contents tells it
}

TEST_CASE("same run: keys that must not change, and those that are named") {
  RunIdentity now = some_run();
  now.settings[0].second = "1e-05";
  now.settings[1].second = "32";
  now.settings[2].second = "16";
  CHECK(mentions(refusal([&](RunIdentity& run) { run = now; }),
                 "lora_rank was 8, and is 16 now. Set it back."));
  now.settings[2].second = "8";
  now.contents[2].digest = 1;
  CHECK_NOTHROW(require_same_run("c", some_run(), now, 8));
  const std::vector<std::string> lines = changes_since("c", some_run(), now, 6);
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] == "learning_rate was 5e-05 and is 1e-05 from step 6 on");
  CHECK(lines[1] == "lora_alpha was 16 and is 32 from step 6 on");
  CHECK(mentions(lines[2], "/data/held_out.json (evaluation data) is not what it was"));
  CHECK(mentions(lines[2], "cannot be compared"));
  // The message on other rows also names the changed keys.
  CHECK(mentions(refusal([](RunIdentity& now) {
                   now.rows = "other";
                   now.settings[0].second = "1e-05";
                 }),
                 "Of the keys learning_rate was 5e-05, and is 1e-05."));
}

TEST_CASE("same run: other streamed rows, with the keys that make them") {
  RunIdentity then = some_run();
  then.rows = std::string(kStreamedRows) + "1";
  then.settings = {{"learning_rate", "1"}, {"cutoff_len", "64"}, {"on_bad_row", "stop"}};
  RunIdentity now = then;
  for (auto& [key, value] : now.settings) value = key == "on_bad_row" ? "skip" : "32";
  CHECK_NOTHROW(require_same_run("c", then, now, 8));
  now.rows = std::string(kStreamedRows) + "2";
  CHECK_THROWS_WITH_AS(require_same_run("c", then, now, 8),
                       doctest::Contains("Of the keys cutoff_len was 64, and is 32. To begin"),
                       UserError);
}

TEST_CASE("same run: a checkpoint of an earlier version goes on, and a line says what it lacks") {
  const testing::TemporaryFolder place;
  TrainingState state;
  state.identity = some_run();
  write_training_state(place.path, state);
  std::ifstream file(place / "training_state.json");
  auto json = nlohmann::ordered_json::parse(file);
  CHECK(json.at("run").erase("settings") == 1);
  CHECK(json.at("run").erase("contents") == 1);
  place.write("training_state.json", json.dump());
  const RunIdentity then = read_training_state(place.path).identity;
  CHECK_NOTHROW(require_same_run("c", then, some_run(), 8));
  const std::vector<std::string> lines = changes_since("c", then, some_run(), 6);
  REQUIRE(lines.size() == 1);
  CHECK(mentions(lines[0], "contents of model and data files and most keys were not compared"));
}

TEST_CASE("same run: paths of any bytes are kept, broken contents are the user's to mend") {
  const testing::TemporaryFolder place;
  TrainingState state;
  state.identity = some_run();
  state.identity.contents[0].path = "/data/\xff";
  state.identity.contents[1].digest = std::nullopt;
  CHECK_NOTHROW(write_training_state(place.path, state));
  CHECK_FALSE(read_training_state(place.path).identity.contents[1].digest);
  std::ifstream file(place / "training_state.json");
  auto json = nlohmann::ordered_json::parse(file);
  json["run"]["contents"][0]["xxh64"] = "no digest";
  place.write("training_state.json", json.dump());
  CHECK_THROWS_AS(read_training_state(place.path), UserError);
}

}  // namespace longspan
