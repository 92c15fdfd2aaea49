#include "longspan/report/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/data/example_set.h"
#include "longspan/registers/stage.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/output_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"

namespace longspan {
namespace {

std::string number_of_parameters(int64_t number) {
  const double n = static_cast<double>(number);
  if (n >= 1e9) return fmt::format("{:.2f} B", n / 1e9);
  if (n >= 1e6) return fmt::format("{:.1f} M", n / 1e6);
  return with_commas(number);
}

std::string data_of(const ExampleSet& examples, bool is_early) {
  if (is_early) {
    return fmt::format("{}, encoded during the training", counted(examples.size(), "row"));
  }
  int64_t num_tokens = 0, num_labels = 0, longest = 0;
  for (int64_t i = 0; i < examples.size(); ++i) {
    const ExamplePointer example = examples.example(i);
    int64_t row_length = 0;
    for (const Sample& document : example->documents) {
      const int64_t length = static_cast<int64_t>(document.input_ids.size());
      row_length += length;
      // No token predicts the first one.
      num_labels +=
          std::count_if(document.labels.begin() + (length > 0 ? 1 : 0), document.labels.end(),
                        [](int32_t label) { return label != kIgnoreLabel; });
    }
    num_tokens += row_length;
    longest = std::max(longest, row_length);
  }
  return fmt::format("{}, {}, of which {}; longest row {}", counted(examples.size(), "row"),
                     counted(num_tokens, "token"), counted(num_labels, "label"),
                     with_commas(longest));
}

std::string plan_of(const ParallelPlan& plan) {
  if (plan.world_size == 1) return "1 process";
  std::string text =
      plan.own_degrees
          ? fmt::format("{0} processes, of which 1 to {0} share each row", plan.world_size)
          : fmt::format("{} processes = {} data-parallel x {} sequence-parallel", plan.world_size,
                        plan.data_size, plan.sequence_size);
  if (plan.sequence_size > 1) text += fmt::format(" ({})", describe_method(plan));
  if (plan.expert_parallel_size > 1) {
    text += fmt::format(", experts shared out among {}", plan.expert_parallel_size);
  }
  return text;
}

}  // namespace

std::string summary_of(const SummaryFacts& facts) {
  const SummarySettings& settings = facts.settings;
  const std::string precision = settings.model.pure_bf16     ? "bf16 throughout"
                                : settings.optimization.bf16 ? "bf16 with fp32 master weights"
                                                             : "fp32";
  std::string text = fmt::format(
      "Model     {}, {} parameters, {}, from {}\n", facts.model.architecture,
      number_of_parameters(facts.num_parameters), precision, settings.model.model_name_or_path);
  if (facts.num_trained < facts.num_parameters) {
    text += fmt::format(
        "          {} of them trained ({:.2f} %), finetuning_type {}\n",
        number_of_parameters(facts.num_trained),
        100.0 * static_cast<double>(facts.num_trained) / static_cast<double>(facts.num_parameters),
        settings.method.finetuning_type);
  }
  const std::string stage = stage_of(settings.method).summary(settings.preferences);
  if (!stage.empty()) text += fmt::format("Stage     {}\n", stage);
  text += fmt::format("Data      {}\n",
                      !facts.train_examples.empty() ? data_of(facts.train_examples, facts.is_early)
                      : facts.streams               ? "rows that are read during the training"
                                                    : "rows of the program that started the run");
  if (!facts.eval_examples.empty())
    text += fmt::format("Eval      {}\n", data_of(facts.eval_examples, facts.is_early));
  text += fmt::format("Plan      {}, {}\n", plan_of(facts.plan), facts.device);
  if (!facts.plan.reason.empty()) text += fmt::format("          {}\n", facts.plan.reason);
  if (settings.method.do_train) {
    const int64_t rows_per_step = settings.optimization.per_device_train_batch_size *
                                  facts.plan.data_size *
                                  settings.optimization.gradient_accumulation_steps;
    text += fmt::format(
        "Training  {} ({} an epoch), {} a step = {} x {} accumulated{}; learning rate {} {}, {}; "
        "gradient checkpointing {}\n",
        counted(facts.steps.total_steps, "step"), with_commas(facts.steps.steps_per_epoch),
        counted(rows_per_step, "row"), settings.optimization.per_device_train_batch_size,
        settings.optimization.gradient_accumulation_steps,
        facts.plan.data_size > 1 ? fmt::format(" x {} groups", facts.plan.data_size) : "",
        settings.optimization.learning_rate, settings.optimization.lr_scheduler_type,
        counted(facts.num_warmup_steps, "warmup step"),
        settings.model.disable_gradient_checkpointing ? "off" : "on");
  }
  text += fmt::format("Output    {}", settings.output.output_dir);
  return text;
}

}  // namespace longspan
