#include "cli/process/run_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/process/cores.h"
#include "cli/process/launcher_environment.h"
#include "longspan/base/user_error.h"
#include "longspan/config/checks.h"
#include "longspan/config/config.h"
#include "longspan/data/run_tokenizer.h"

namespace longspan {
namespace {

/// As in LLaMA-Factory, tokens that the tokenizer does not have yet set resize_vocab.
void settle_added_tokens(Config& config) {
  if (config.method.resize_vocab || added_tokens(config.data).empty()) return;
  const std::string& folder = config.model.model_name_or_path;
  if (run_tokenizer(folder, config.data).vocab_size() == Tokenizer::load(folder).vocab_size()) {
    return;
  }
  config.method.resize_vocab = true;
  config.notes.emplace_back(
      "add_tokens and add_special_tokens name new tokens, which sets resize_vocab: true.");
  const std::vector<std::string> problems = check_config(config, TrainingRows::kOfDataSet);
  if (!problems.empty()) throw UserError(fmt::format("{}", fmt::join(problems, "\n")));
}

}  // namespace

Config load_run_config(const std::string& path, const std::vector<std::string>& overrides) {
  Config config = load_config(path, overrides);
  settle_added_tokens(config);
  config.output.surroundings = surroundings_of_output();
  // Only a training goes on where the job before the requeue stopped.
  if (!config.method.do_train) config.output.surroundings.job_was_requeued = false;
  if (!config.data.preprocessing_num_workers) {
    config.data.preprocessing_num_workers = num_cores();
  }
  return config;
}

}  // namespace longspan
