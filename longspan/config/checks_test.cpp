#include "longspan/config/checks.h"

#include <doctest/doctest.h>

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

}  // namespace
}  // namespace longspan
