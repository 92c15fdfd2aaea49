#include "longspan/saving/training_state.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "doctest/doctest.h"
#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

RunFile state_file(FileRole role, const std::string& name, uint64_t digest) {
  return {.role = role,
          .name = name,
          .path = "/data/" + name,
          .decides = role != FileRole::kEvaluationData,
          .stamp = {.size = 100, .mtime_ns = 1, .ctime_ns = 2, .inode = 3},
          .digest = digest};
}

TrainingState some_state() {
  TrainingState state;
  state.launch = "abc";
  state.saved_at = 1234567890.123;
  state.world_size = 2;
  state.identity = {.stage = "dpo",
                    .finetuning_type = "lora",
                    .trained = "t",
                    .rows = "r",
                    .num_rows = 24,
                    .rows_per_step = 8,
                    .seed = 42,
                    .shuffled = true,
                    .template_time = "2026-11-26T00:05:09.000007",
                    .rope_scaling = "none",
                    .stored_numbers = "GPTQ, zeros plus 1",
                    .settings = {{"learning_rate", "5e-05"}, {"lora_alpha", "16"}},
                    .contents = {state_file(FileRole::kModelWeights, "model.safetensors", 7),
                                 state_file(FileRole::kTrainingData, "rows.json", 8),
                                 state_file(FileRole::kEvaluationData, "held_out.json", 9)}};
  state.totals.progress = {.step = 5, .total_steps = 10, .epoch = 1.0 / 3, .num_tokens = 99};
  state.totals.loss_in_all = 0.1 + 0.2;
  state.totals.last_evaluated_step = 4;
  state.totals.last_evaluation = {.loss = 2.0 / 3, .means = {{"rewards/margins", 1e-17}}};
  state.source = "line 70 of a stream";
  state.averages = {{{"kl", {0.1, 3.0}}}, {{"kl", {0.7, 2.0}}, {"other", {1.0, 1.0}}}};
  return state;
}

}  // namespace

TEST_CASE("training state: numbers that count nothing are refused, and none becomes another") {
  const testing::TemporaryFolder place;
  write_training_state(place.path, some_state());
  std::ifstream file(place / kTrainingStateFile);
  const nlohmann::json whole = nlohmann::json::parse(file);
  for (const char* key :
       {"/totals/progress/step", "/totals/progress/num_tokens", "/run/num_rows",
        "/run/rows_per_step", "/totals/num_samples", "/world_size", "/sequence_parallel_size"}) {
    for (const char* value : {"4.7", "1e30", "-2", "18446744073709551615", "\"5\"", "null"}) {
      CAPTURE(key);
      CAPTURE(value);
      nlohmann::json changed = whole;
      changed[nlohmann::json::json_pointer(key)] = nlohmann::json::parse(value);
      place.write(kTrainingStateFile, changed.dump());
      CHECK_THROWS_WITH_AS(read_training_state(place.path), doctest::Contains("was given; wanted"),
                           UserError);
    }
  }
  nlohmann::json timeless = whole;
  timeless["run"]["moment"] = "26 Nov";
  place.write(kTrainingStateFile, timeless.dump());
  CHECK_THROWS_WITH_AS(read_training_state(place.path), doctest::Contains("is no date and time"),
                       UserError);
  timeless["run"].erase("moment");  // as an earlier version writes it
  place.write(kTrainingStateFile, timeless.dump());
  CHECK(read_training_state(place.path).identity.template_time.empty());
  nlohmann::json written_by_others = whole;
  written_by_others["totals"]["progress"]["step"] = 5.0;
  place.write(kTrainingStateFile, written_by_others.dump());
  CHECK(read_training_state(place.path).totals.progress.step == 5);
}

TEST_CASE("training state: every bit comes back") {
  const testing::TemporaryFolder place;
  const TrainingState state = some_state();
  write_training_state(place.path, state);
  const TrainingState read = read_training_state(place.path);
  CHECK(read.launch == state.launch);
  CHECK(read.saved_at == state.saved_at);
  CHECK(read.totals.progress.epoch == state.totals.progress.epoch);
  CHECK(read.totals.loss_in_all == state.totals.loss_in_all);
  CHECK(read.totals.last_evaluation.loss == state.totals.last_evaluation.loss);
  CHECK(read.totals.last_evaluation.means == state.totals.last_evaluation.means);
  CHECK(read.averages == state.averages);
  CHECK(read.source == state.source);
  CHECK_FALSE(read.totals.evaluation_due);
  CHECK_NOTHROW(require_same_run("c", state.identity, read.identity, 8));
  CHECK(changes_since("c", state.identity, read.identity, 6).empty());
  CHECK(read.identity.settings == state.identity.settings);
  CHECK(read.identity.template_time == state.identity.template_time);
  REQUIRE(read.identity.contents.size() == 3);
  CHECK(read.identity.contents[0].stamp == state.identity.contents[0].stamp);
  CHECK(read.identity.contents[0].digest == 7);
  CHECK(read.identity.contents[0].path == "/data/model.safetensors");

  TrainingState broken = state;  // numbers that JSON does not have
  const double infinity = std::numeric_limits<double>::infinity();
  broken.totals.last_evaluation.loss = std::nan("");
  broken.totals.last_evaluation.means = {{"rewards/margins", -infinity}};
  broken.averages = {{{"kl", {infinity, 3.0}}}};
  broken.totals.evaluation_due = true;
  write_training_state(place.path, broken);
  const TrainingState again = read_training_state(place.path);
  CHECK(std::isnan(again.totals.last_evaluation.loss));
  CHECK(again.totals.last_evaluation.means == broken.totals.last_evaluation.means);
  CHECK(again.averages == broken.averages);
  CHECK(again.totals.evaluation_due);
  CHECK(averages_from(text_of(broken.averages[0])) == broken.averages[0]);

  place.write("training_state.json", "{\"format\": 1}");
  CHECK_THROWS_AS(read_training_state(place.path), UserError);
  std::filesystem::remove(place / "training_state.json");
  CHECK_THROWS_AS(read_training_state(place.path), UserError);
}

TEST_CASE("training state: averages of other numbers of ranks are not lost") {
  const TrainingState state = some_state();
  CHECK(averages_for(state, 1, 2) == state.averages[1]);
  const RankAverages all = averages_for(state, 0, 3);
  CHECK(all.at("kl").first == doctest::Approx(0.8));
  CHECK(all.at("kl").second == 5.0);
  CHECK(all.at("other").second == 1.0);
  CHECK(averages_for(state, 1, 3).empty());
}

TEST_CASE("training state: a run that would see other rows is refused, with the remedy") {
  const RunIdentity then = some_state().identity;
  RunIdentity now = then;
  now.rows.clear();
  CHECK_THROWS_WITH_AS(require_same_run("c", then, now, 8),
                       doctest::Contains("the source of the training rows was a data set, and is "
                                         "the program that started the run now. Set dataset back."),
                       UserError);
  CHECK_THROWS_WITH_AS(require_same_run("c", now, then, 8),
                       doctest::Contains("Give the run the same source of rows, without dataset."),
                       UserError);
  CHECK_NOTHROW(require_same_run("c", now, now, 8));
  now = then;
  now.rows_per_step = 4;
  CHECK_THROWS_WITH_AS(
      require_same_run("c", then, now, 2),
      doctest::Contains("was 8, and is 4 now. Set gradient_accumulation_steps: 4."), UserError);
  CHECK_THROWS_WITH_AS(require_same_run("c", then, now, 3),
                       doctest::Contains("so that their product is 8"), UserError);
  now = then;
  now.shuffled = false;
  CHECK_THROWS_WITH_AS(require_same_run("c", then, now, 8),
                       doctest::Contains("disable_shuffling was false, and is true now"),
                       UserError);
  now = then;
  now.rope_scaling = "yarn with factor 2 (512 positions)";
  CHECK_THROWS_WITH_AS(
      require_same_run("c", then, now, 8),
      doctest::Contains("rope_scaling was none, and is yarn with factor 2 (512 positions) now. Set "
                        "rope_scaling and cutoff_len"),
      UserError);
  now = then;
  now.stored_numbers = "GPTQ, zeros plus 0";
  CHECK_THROWS_WITH_AS(require_same_run("c", then, now, 8),
                       doctest::Contains("was GPTQ, zeros plus 1, and is GPTQ, zeros plus 0 now. "
                                         "Put back what its quantization_config was."),
                       UserError);
}

TEST_CASE(
    "training state: a checkpoint that does not say its rope_scaling or format is gone on from") {
  const testing::TemporaryFolder place;
  const TrainingState state = some_state();
  write_training_state(place.path, state);
  std::ifstream file(place / "training_state.json");
  auto json = nlohmann::ordered_json::parse(file);
  CHECK(json.at("run").erase("rope_scaling") == 1);
  CHECK(json.at("run").erase("stored_numbers") == 1);
  place.write("training_state.json", json.dump());
  const TrainingState read = read_training_state(place.path);
  CHECK_NOTHROW(require_same_run("c", read.identity, state.identity, 8));
}

}  // namespace longspan
