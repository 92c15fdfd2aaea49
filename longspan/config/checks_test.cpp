#include "longspan/config/checks.h"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "longspan/config/config.h"

namespace longspan {
namespace {

TEST_CASE("checks: rows of the caller's need no data set, and keys about one are refused") {
  Config config;
  config.model.model_name_or_path = "m";
  config.output.output_dir = "o";
  config.method.do_train = true;
  CHECK(check_config(config, TrainingRows::kOfDataSet) ==
        std::vector<std::string>{"dataset is missing: give names from dataset_info.json"});
  CHECK(check_config(config, TrainingRows::kOfCaller).empty());
  Config evaluated = config;
  evaluated.data.eval_dataset = "e";
  evaluated.method.do_eval = true;
  evaluated.preferences.compute_accuracy = true;
  CHECK(check_config(evaluated, TrainingRows::kOfCaller).empty());
  Config accurate = config;
  accurate.preferences.compute_accuracy = true;
  CHECK(check_config(accurate, TrainingRows::kOfCaller) ==
        std::vector<std::string>{"compute_accuracy is for evaluations, and nothing evaluates; "
                                 "remove it, or add do_eval or eval_strategy"});
  Config split = config;
  split.data.val_size = 0.1;
  split.method.do_eval = true;
  CHECK(check_config(split, TrainingRows::kOfCaller) ==
        std::vector<std::string>{
            "val_size splits rows off dataset, and dataset is missing; give eval_dataset"});
  Config precomputed = config;
  precomputed.method.stage = "dpo";
  precomputed.preferences.precompute_ref_log_probs = true;
  CHECK(check_config(precomputed, TrainingRows::kOfCaller) ==
        std::vector<std::string>{"precompute_ref_log_probs computes a table for the rows of "
                                 "dataset, and dataset is missing; remove the key"});
  // With a data set, the caller's source may draw from it.
  for (Config* both : {&split, &precomputed}) {
    both->data.dataset = "d";
    CHECK(check_config(*both, TrainingRows::kOfCaller).empty());
  }
}

TEST_CASE("checks: keys that streamed rows cannot have") {
  Config streamed;
  streamed.model.model_name_or_path = "m";
  streamed.output.output_dir = "o";
  streamed.method.do_train = true;
  streamed.data.dataset = "d";
  streamed.data.streaming = true;
  streamed.optimization.max_steps = 5;
  CHECK(check_config(streamed, TrainingRows::kOfDataSet).empty());
  struct Case {
    std::string told;
    std::function<void(Config&)> change;
  };
  const std::vector<Case> cases = {
      {"max_steps is missing", [](Config& config) { config.optimization.max_steps = -1; }},
      {"max_samples and streaming", [](Config& config) { config.data.max_samples = 3; }},
      {"tokenized_path and streaming", [](Config& config) { config.data.tokenized_path = "t"; }},
      {"overwrite_cache and streaming", [](Config& config) { config.data.overwrite_cache = true; }},
      {"give a whole number of rows",
       [](Config& config) {
         config.data.val_size = 0.1;
         config.method.do_eval = true;
       }},
      {"balance_batches", [](Config& config) { config.parallel.balance_batches = true; }},
      {"precompute_ref_log_probs",
       [](Config& config) {
         config.method.stage = "dpo";
         config.preferences.precompute_ref_log_probs = true;
       }},
      {"save_strategy: epoch", [](Config& config) { config.output.save_strategy = "epoch"; }},
      {"buffer_size is for streaming", [](Config& config) {
         config.data.streaming = false;
         config.data.buffer_size = 7;
       }}};
  for (const Case& one : cases) {
    Config config = streamed;
    one.change(config);
    const std::vector<std::string> problems = check_config(config, TrainingRows::kOfDataSet);
    CAPTURE(one.told);
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].find(one.told) != std::string::npos);
  }
}

}  // namespace
}  // namespace longspan
