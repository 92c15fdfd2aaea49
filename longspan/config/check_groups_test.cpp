#include "longspan/config/check_groups.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "longspan/config/config.h"

namespace longspan {
namespace {

std::vector<std::string> problems_of(const Config& config) {
  std::vector<std::string> problems;
  const auto demand = [&](bool holds, std::string_view problem) {
    if (!holds) problems.emplace_back(problem);
  };
  check_pissa(config, demand);
  check_adapter(config, demand);
  check_services(config.output, demand);
  check_answers(config, demand);
  return problems;
}

Config training() {
  Config config;
  config.method.do_train = true;
  return config;
}

void check_one(const Config& config, std::string_view beginning) {
  const std::vector<std::string> problems = problems_of(config);
  REQUIRE(problems.size() == 1);
  CHECK_MESSAGE(problems[0].starts_with(beginning), problems[0]);
}

}  // namespace

TEST_CASE("PiSSA: a new adapter, whose rest of the model is neither a reference nor served") {
  Config config = training();
  CHECK(problems_of(config).empty());
  config.method.pissa_convert = true;
  check_one(config, "pissa_iter and pissa_convert are for pissa_init: true");
  config.method.pissa_init = true;
  config.method.pissa_iter = -1;
  CHECK(problems_of(config).empty());
  config.preferences.use_asft_loss = true;
  check_one(config, "pissa_init takes a part out of the model that would be the reference");
  config.preferences.ref_model = "base";
  CHECK(problems_of(config).empty());
  config.method.stage = "rm";
  check_one(config, "pissa_init is not for stage: rm");
  config.method.stage = "grpo";
  check_one(config, "pissa_init is not for stage: grpo");
  config.method.stage = "dpo";
  config.model.adapter_name_or_path = "adapter";
  check_one(config, "pissa_init is for a new adapter");
}

TEST_CASE("adapters: DoRA's magnitudes are not rounded to bf16") {
  Config config = training();
  config.method.use_dora = true;
  config.optimization.bf16 = true;
  CHECK(problems_of(config).empty());
  config.optimization.bf16 = false;
  config.model.pure_bf16 = true;
  check_one(config, "use_dora is not for pure_bf16: true");
  config.method.use_dora = false;
  CHECK(problems_of(config).empty());
}

TEST_CASE("answers: only where something generates") {
  Config config = training();
  GenerationSettings& given = config.method.generation;
  given.max_new_tokens = 5;
  check_one(config, "do_sample, temperature, top_p, top_k, max_new_tokens, repetition_penalty and");
  given.predict_with_generate = true;
  check_one(config, "predict_with_generate is for evaluations, and nothing evaluates");
  config.optimization.eval_strategy = "steps";
  CHECK(problems_of(config).empty());
  config.method.do_train = false;
  check_one(config, "do_train must be true");
  given.do_predict = true;
  CHECK(problems_of(config).empty());
  config.output.resume_from_checkpoint = "true";
  check_one(config, "resume_from_checkpoint is for training, and do_train is not true");
  config.output.resume_from_checkpoint = "false";
  CHECK(problems_of(config).empty());
  config.data.val_size = 0.1;
  check_one(config, "val_size splits rows off dataset, and dataset is missing");
  config.data.dataset = "rows";
  config.preferences.compute_accuracy = true;
  check_one(config, "predict_with_generate compares generated answers, and compute_accuracy");
  config.preferences.compute_accuracy = false;
  config.method.do_train = true;
  given = {.do_predict = true};
  check_one(config, "do_predict writes generated answers; add predict_with_generate: true");
}

TEST_CASE("answers: the likeliest token is not drawn") {
  Config config = training();
  config.optimization.eval_strategy = "steps";
  GenerationSettings& given = config.method.generation;
  given = {.predict_with_generate = true, .do_sample = false};
  CHECK(problems_of(config).empty());
  given.top_p = 0.9;
  check_one(config, "temperature, top_p, top_k and do_sample contradict each other");
  given = {.predict_with_generate = true, .temperature = 0, .top_k = 20};
  check_one(config, "temperature, top_p, top_k and do_sample contradict each other");
  given = {.predict_with_generate = true, .do_sample = false, .temperature = 1.5};
  check_one(config, "temperature, top_p, top_k and do_sample contradict each other");
  given = {
      .predict_with_generate = true, .do_sample = false, .temperature = 0, .top_p = 1, .top_k = 0};
  CHECK(problems_of(config).empty());
  given = {.predict_with_generate = true, .temperature = 1.5, .top_p = 0.9, .top_k = 20};
  CHECK(problems_of(config).empty());
}

TEST_CASE("services: keys of a service that the run does not have") {
  Config config = training();
  config.output.services.project = "mine";
  check_one(config, "project and trackio_space_id are for report_to: trackio");
  config.output.report_to = "wandb,trackio";
  CHECK(problems_of(config).empty());
  config.output.services.swanlab_mode = "local";
  check_one(config, "the keys swanlab_* are for use_swanlab: true");
  config.output.services.use_swanlab = true;
  CHECK(problems_of(config).empty());
}

}  // namespace longspan
