#include "longspan/train/predictions.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/function_calls.h"
#include "longspan/data/run_tokenizer.h"
#include "longspan/data/turns.h"
#include "longspan/files/atomic_file.h"
#include "longspan/generation/assistant.h"
#include "longspan/memory/machine_memory.h"
#include "longspan/registers/stage.h"
#include "longspan/report/training_log.h"
#include "longspan/rows/ignore_label.h"
#include "longspan/saving/output_folders.h"
#include "longspan/saving/saving.h"
#include "longspan/session/trained_model.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/model_settings.h"
#include "longspan/text/bytes.h"
#include "longspan/text/counted.h"
#include "longspan/text/similarity.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

GenerationOptions options_of(const GenerationSettings& config, int64_t seed) {
  return {.sampling = {.do_sample = config.do_sample && config.temperature > 0,
                       .temperature = config.temperature,
                       .top_k = config.top_k,
                       .top_p = config.top_p,
                       .repetition_penalty = config.repetition_penalty},
          .max_new_tokens = config.max_new_tokens,
          .end_tokens = {},
          .seed = static_cast<uint64_t>(seed)};
}

/// Each process holds the whole model once more.
void require_room(const TrainedModel& model, int ranks_here) {
  const int64_t bytes =
      model.num_parameters() * static_cast<int64_t>(c10::elementSize(model.options.compute_dtype));
  const MachineMemory machine = machine_memory();
  if (bytes <= machine.bytes / std::max(1, ranks_here)) return;
  throw UserError(
      fmt::format("predict_with_generate: each process holds the whole model once more for its "
                  "answers, {} here with {} each, and {}. Start fewer processes on a machine "
                  "(nproc_per_node), or remove predict_with_generate and give the trained model to "
                  "`longspan generate`.",
                  counted(ranks_here, "process"), name_bytes(bytes), machine.text()));
}

}  // namespace

Predictions::Predictions(Parts parts)
    : parts_(std::move(parts)),
      settings_(parts_.config.method.generation),
      tokenizer_(run_tokenizer(parts_.config.model.model_name_or_path, parts_.config.data)),
      options_(options_of(settings_, parts_.config.seed)) {
  require_room(parts_.session.trained(), parts_.ranks_here);
  const RowSettings& config = parts_.config;
  options_.end_tokens = ends_of(tokenizer_, *make_turn_encoder(config.data, stage_of(config.method),
                                                               tokenizer_, parts_.template_time));
  warning_ = warning_of_generation_config(config.model.model_name_or_path);
  for (int64_t i = 0; i < parts_.rows.size(); ++i) {
    const ExamplePointer example = parts_.rows.example(i);
    const Sample& row = example->documents.front();
    const auto num_asked =
        std::ranges::find_if(row.labels, [](int32_t label) { return label != kIgnoreLabel; }) -
        row.labels.begin();
    prompts_.emplace_back(row.input_ids.begin(), row.input_ids.begin() + num_asked);
    labels_.emplace_back(row.input_ids.begin() + num_asked, row.input_ids.end());
  }
}

std::string Predictions::description() const {
  const std::string sampled =
      options_.sampling.do_sample
          ? fmt::format("sampled with temperature {:g}, top_p {:g}, top_k {}",
                        settings_.temperature, settings_.top_p, settings_.top_k)
          : "greedy";
  return fmt::format(
      "Answering {} of evaluation on the CPU, by {}: {}, up to {} each; each process holds the "
      "whole model once more",
      counted(std::ssize(prompts_), "row"), counted(parts_.session.mesh().world.size(), "process"),
      sampled, counted(settings_.max_new_tokens, "token"));
}

std::optional<EvaluationResult> Predictions::evaluate() {
  if (step_ == parts_.session.step()) return result_;
  parts_.session.events().say(description());
  if (!warning_.empty()) parts_.session.events().say(std::exchange(warning_, ""));
  const auto start = Clock::now();
  const RunControl& control = parts_.control;
  answers_ = parts_.session.generate(
      prompts_, options_, parts_.batch_size,
      [&control] { return !control.requested() && !control.told_to_stop(); },
      /*on_all_ranks=*/true);
  step_ = -1;
  // Answers are equal on all ranks.
  const auto is_interrupted = [](const Answer& answer) {
    return answer.reason == FinishReason::kInterrupted;
  };
  if (std::ranges::any_of(answers_, is_interrupted)) return std::nullopt;
  result_ = compared(std::chrono::duration<double>(Clock::now() - start).count());
  step_ = parts_.session.step();
  return result_;
}

std::string Predictions::text_of(const Answer& answer, bool skip_special_tokens) const {
  std::vector<int32_t> tokens = answer.tokens;
  if (answer.end_token) tokens.push_back(*answer.end_token);
  return tokenizer_.decode(tokens, skip_special_tokens);
}

EvaluationResult Predictions::compared(double seconds) const {
  Similarity sums{};
  for (size_t i = 0; i < answers_.size(); ++i) {
    const Similarity scores =
        similarity(text_of(answers_[i], /*skip_special_tokens=*/true),
                   tokenizer_.decode(labels_[i], /*skip_special_tokens=*/true));
    sums.rouge_1 += scores.rouge_1;
    sums.rouge_2 += scores.rouge_2;
    sums.rouge_l += scores.rouge_l;
    sums.bleu_4 += scores.bleu_4;
  }
  const auto num_rows = static_cast<double>(answers_.size());
  const int64_t at_a_time = parts_.batch_size * parts_.session.mesh().world.size();
  return {.loss = std::numeric_limits<double>::quiet_NaN(),
          .seconds = seconds,
          .num_samples = std::ssize(answers_),
          .num_batches = (std::ssize(answers_) + at_a_time - 1) / at_a_time,
          .means = {{"rouge-1", sums.rouge_1 / num_rows},
                    {"rouge-2", sums.rouge_2 / num_rows},
                    {"rouge-l", sums.rouge_l / num_rows},
                    {"bleu-4", sums.bleu_4 / num_rows}},
          .generated = true};
}

std::string Predictions::scores() const {
  std::string text;
  for (const auto& [name, mean] : result_.means) {
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", name, mean);
  }
  return text;
}

void Predictions::write(TrainingLog& log) const {
  std::string lines;
  for (size_t i = 0; i < answers_.size(); ++i) {
    lines += fmt::format(
        "{{\"prompt\": {}, \"predict\": {}, \"label\": {}}}\n",
        python_json_string(tokenizer_.decode(prompts_[i])),
        python_json_string(text_of(answers_[i], settings_.skip_special_tokens)),
        python_json_string(tokenizer_.decode(labels_[i], settings_.skip_special_tokens)));
  }
  write_file_atomically(log.folder() + "/" + kAnswersFile, lines);
  log.write_predict_results(result_);
}

void remove_earlier_answers(const MethodSettings& config, const std::string& folder) {
  on_disk(folder, [&] {
    if (config.do_eval) std::filesystem::remove(folder + "/eval_results.json");
    if (!config.generation.do_predict) return;
    std::filesystem::remove(folder + "/predict_results.json");
    std::filesystem::remove(folder + "/" + kAnswersFile);
  });
}

}  // namespace longspan
