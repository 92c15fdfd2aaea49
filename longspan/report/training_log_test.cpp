#include "longspan/report/training_log.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "doctest/doctest.h"
#include "longspan/base/user_error.h"
#include "longspan/report/console.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

nlohmann::json read_json(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

}  // namespace

TEST_CASE("training log: what is written is read back whole") {
  const testing::TemporaryFolder place;
  TrainingLog log(place.path, {.logging_steps = 2, .save_steps = 500});
  const double loss = 2.0 / 3.0;
  const Progress progress{.step = 2,
                          .total_steps = 8,
                          .epoch = 0.25,
                          .num_tokens = 300,
                          .num_computed_tokens = 300,
                          .elapsed_seconds = 30.0};
  log.add(progress, LoggedStep{.loss = loss, .grad_norm = 1.0 / 7.0, .learning_rate = 5e-5});
  log.add(progress,
          EvaluationResult{.loss = 3.5, .seconds = 2.0, .num_samples = 5, .num_batches = 3});

  std::ifstream lines(place / "trainer_log.jsonl");
  std::string line;
  std::getline(lines, line);
  const nlohmann::json first = nlohmann::json::parse(line);
  CHECK(first.at("current_steps") == 2);
  CHECK(first.at("total_steps") == 8);
  CHECK(first.at("loss").get<double>() == loss);
  CHECK(first.at("lr").get<double>() == 5e-5);
  CHECK(first.at("percentage").get<double>() == 25.0);
  CHECK(first.at("elapsed_time") == "0:00:30");
  CHECK(first.at("remaining_time") == "0:01:30");
  CHECK(first.at("throughput").get<double>() == 10.0);
  std::getline(lines, line);
  CHECK(nlohmann::json::parse(line).at("eval_loss").get<double>() == 3.5);

  log.write_state(place.path, progress);
  const nlohmann::json state = read_json(place / "trainer_state.json");
  CHECK(state.at("global_step") == 2);
  CHECK(state.at("log_history").size() == 2);
  CHECK(state.at("log_history")[0].at("grad_norm").get<double>() == 1.0 / 7.0);
  CHECK(state.at("log_history")[1].at("eval_samples_per_second").get<double>() == 2.5);

  log.write_train_results(progress, {.loss = loss, .seconds = 4.0, .num_samples = 8.0});
  log.write_eval_results(progress, {.loss = 3.5, .seconds = 2.0});
  CHECK(read_json(place / "train_results.json").at("train_loss").get<double>() == loss);
  const nlohmann::json all = read_json(place / "all_results.json");
  CHECK(all.contains("train_loss"));
  CHECK(all.contains("eval_loss"));
  // A later run adds to the results.
  TrainingLog answers(place.path, {});
  answers.restore_results();
  answers.write_predict_results({.num_samples = 2, .means = {{"bleu-4", 0.5}}, .generated = true});
  const nlohmann::json both = read_json(place / "all_results.json");
  CHECK(both.at("train_loss").get<double>() == loss);
  CHECK(both.at("predict_bleu-4").get<double>() == 0.5);

  const auto [steps, losses] = log.curve("loss");
  CHECK(steps == std::vector<double>{2.0});
  CHECK(losses == std::vector<double>{loss});
}

TEST_CASE("training log: tokens of the data, and beside them those that are computed") {
  const testing::TemporaryFolder place;
  TrainingLog log(place.path, {});
  const Progress progress{.step = 2,
                          .total_steps = 4,
                          .epoch = 0.5,
                          .num_tokens = 300,
                          .num_computed_tokens = 200,
                          .elapsed_seconds = 10.0};
  const TrainingResult result{.loss = 1.0, .seconds = 10.0, .num_samples = 8.0};
  log.add(progress, LoggedStep{.loss = 1.0});
  log.write_train_results(progress, result);
  std::ifstream lines(place / "trainer_log.jsonl");
  const nlohmann::json line = nlohmann::json::parse(lines);
  CHECK(line.at("total_tokens") == 300);
  CHECK(line.at("throughput").get<double>() == 30.0);
  CHECK(line.at("computed_tokens") == 200);
  CHECK(line.at("computed_throughput").get<double>() == 20.0);
  const nlohmann::json results = read_json(place / "train_results.json");
  CHECK(results.at("num_input_tokens_seen") == 300);
  CHECK(results.at("train_tokens_per_second").get<double>() == 30.0);
  CHECK(results.at("num_computed_tokens") == 200);
  CHECK(results.at("train_computed_tokens_per_second").get<double>() == 20.0);
  CHECK(progress_text(progress, 1.0) ==
        "2/4 | loss 1.0000  30 tokens/s (20 computed) | 0:00:10 left");

  // Equal numbers appear once.
  const Progress plain{.step = 2, .num_tokens = 300, .num_computed_tokens = 300};
  TrainingLog other(place.path, {});
  other.write_train_results(plain, result);
  CHECK(!read_json(place / "train_results.json").contains("num_computed_tokens"));
  CHECK(progress_text(plain, 1.0).find("computed") == std::string::npos);
}

TEST_CASE("training log: a line that cannot be written ends no run, and is told once") {
  const testing::TemporaryFolder place;
  const std::string gone = place / "gone";
  TrainingLog log(gone, {});
  std::vector<std::string> told;
  log.warn([&](const std::string& text) { told.push_back(text); });
  for (const int64_t step : {1, 2}) {
    CHECK_NOTHROW(log.add({.step = step, .total_steps = 3}, LoggedStep{}));
    CHECK(log.lags_behind());
  }
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("gone/trainer_log.jsonl: cannot be written (No such file") !=
        std::string::npos);
  CHECK_THROWS_AS(log.move_to(gone), UserError);  // at the end it is an error
  CHECK(log.lags_behind());
  std::filesystem::create_directory(gone);
  log.add({.step = 3, .total_steps = 3}, LoggedStep{});
  CHECK_FALSE(log.lags_behind());
  std::ifstream lines(gone + "/trainer_log.jsonl");
  int64_t count = 0;
  for (std::string line; std::getline(lines, line);) ++count;
  CHECK(count == 3);
}

TEST_CASE("console line and durations read like Python's") {
  CHECK(console_line({{"loss", 2.5}, {"learning_rate", 5e-5}, {"step", int64_t{3}}}) ==
        "{'loss': 2.5, 'learning_rate': 5e-05}");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(console_line({{"eval_loss", std::copysign(nan, -1.0)}, {"lr", nan}}) ==
        "{'eval_loss': nan, 'lr': nan}");
  // Six digits; files have all of them.
  CHECK(console_line({{"loss", 6.194837521983}, {"learning_rate", 4.6153846153846e-05}}) ==
        "{'loss': 6.19484, 'learning_rate': 4.61538e-05}");
  CHECK(format_duration(75.4) == "0:01:15");
  CHECK(format_duration(90061) == "1 day, 1:01:01");
}

TEST_CASE("training log: a line that the disk has no room for waits for the next one") {
  const testing::TemporaryFolder place;
  // Writes to /dev/full fail for lack of space.
  std::filesystem::create_symlink("/dev/full", place / "trainer_log.jsonl");
  TrainingLog log(place.path, {});
  Progress progress{.step = 1, .total_steps = 8};
  CHECK_NOTHROW(
      log.add(progress, LoggedStep{.loss = 1.0, .grad_norm = 1.0, .learning_rate = 1e-5}));
  CHECK(log.lags_behind());
  progress.step = 2;
  log.add(progress, LoggedStep{.loss = 2.0, .grad_norm = 1.0, .learning_rate = 1e-5});
  CHECK_FALSE(log.lags_behind());
  const auto num_lines = [](const std::string& path) {
    std::ifstream lines(path);
    int64_t count = 0;
    for (std::string line; std::getline(lines, line);) ++count;
    return count;
  };
  CHECK(num_lines(place / "trainer_log.jsonl") == 2);
  CHECK(log.history().size() == 2);
  const testing::TemporaryFolder other;
  log.move_to(other.path);
  progress.step = 3;
  log.add(progress, LoggedStep{.loss = 3.0, .grad_norm = 1.0, .learning_rate = 1e-5});
  CHECK(num_lines(other / "trainer_log.jsonl") == 3);
  CHECK(num_lines(place / "trainer_log.jsonl") == 2);
}

TEST_CASE("training log: numbers of another program's log are numbers") {
  const testing::TemporaryFolder place;
  place.write("then/trainer_log.jsonl", "");
  const auto restored = [&](const std::string& history) {
    place.write("then/trainer_state.json", "{\"log_history\": " + history + "}");
    auto log = std::make_unique<TrainingLog>(place.path, RunConstants{});
    log->restore(place / "then");
    return log;
  };
  const auto log = restored(
      R"([{"loss": 3, "step": 1}, {"step": 2.0, "loss": 2.5, "lr": 1}, {"loss": 1},
          {"total_flos": 4, "big": 18446744073709551615, "other": null, "step": 3}])");
  const auto [steps, losses] = log->curve("loss");
  CHECK(steps == std::vector<double>{1, 2});
  CHECK(losses == std::vector<double>{3, 2.5});
  log->write_state(place.path, {.step = 3});
  CHECK(read_json(place / "trainer_state.json").at("total_flos").get<double>() == 4.0);
  CHECK_THROWS_AS(restored("[5]"), UserError);
  CHECK_THROWS_AS(restored("[{\"loss\": 1e999}]"), UserError);
  CHECK_THROWS_AS(restored("3"), UserError);
  CHECK_THROWS_AS(restored(std::string(200'000, '[')), UserError);
}

}  // namespace longspan
