#include "longspan/config/checks.h"

#include <fmt/format.h>

#include <cmath>

namespace longspan {

std::vector<std::string> check_config(const Config& config) {
  std::vector<std::string> problems;
  const auto demand = [&](bool holds, std::string_view problem) {
    if (!holds) problems.emplace_back(problem);
  };

  demand(!config.model_name_or_path.empty(),
         "model_name_or_path is missing: give a Hugging Face model folder");
  demand(!config.dataset.empty(), "dataset is missing: give names from dataset_info.json");
  demand(!config.output_dir.empty(), "output_dir is missing: give a folder for the results");
  demand(config.do_train, "do_train must be true: `longspan train` trains");

  demand(config.warmup_ratio == 0 || config.warmup_steps == 0,
         "warmup_ratio and warmup_steps are both given: keep one");
  demand(config.lr_scheduler_type != "constant" ||
             (config.warmup_ratio == 0 && config.warmup_steps == 0),
         "lr_scheduler_type: constant has no warmup: take constant_with_warmup");
  demand(config.max_steps == -1 || config.max_steps > 0,
         "max_steps: give a positive number, or -1 to go by num_train_epochs");
  demand(config.adam_beta1 < 1 && config.adam_beta2 < 1,
         "adam_beta1 and adam_beta2 must be below 1");

  demand(!config.mask_history || !config.train_on_prompt,
         "mask_history and train_on_prompt are both true: the first trains the last answer only, "
         "the second trains everything; keep one");

  const bool splits = config.val_size > 0,
             evaluates = config.do_eval || config.eval_strategy != "no";
  demand(config.val_size < 1 || std::nearbyint(config.val_size) == config.val_size,
         "val_size: give a share below 1 (0.1) or a whole number of rows (100)");
  demand(!splits || config.eval_dataset.empty(),
         "eval_dataset and val_size are both given: keep one");
  demand(!evaluates || splits || !config.eval_dataset.empty(),
         "nothing to evaluate on: give eval_dataset, or val_size to set rows of dataset aside");
  demand(
      evaluates || (!splits && config.eval_dataset.empty()),
      "rows for evaluation are given but nothing evaluates: add eval_strategy: steps (or epoch), "
      "or do_eval: true for once at the end");
  demand(!config.eval_steps || config.eval_strategy == "steps",
         "eval_steps is given without eval_strategy: steps");
  return problems;
}

}  // namespace longspan
