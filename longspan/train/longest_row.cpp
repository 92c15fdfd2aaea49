#include "longspan/train/longest_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"
#include "longspan/input/numbers.h"
#include "longspan/liveness/agreement.h"
#include "longspan/registers/stage.h"
#include "longspan/report/memory_report.h"
#include "longspan/rollouts/rollout_rows.h"
#include "longspan/settings/data_settings.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/text/counted.h"
#include "longspan/text/progress_bar.h"

namespace longspan {
namespace {

std::string text_of(const RowsOfFile& rows) {
  nlohmann::json documents = nlohmann::json::array();
  for (const Document& document : rows.longest.documents) {
    nlohmann::json segments = nlohmann::json::array();
    for (const Segment& segment : document.segments) {
      segments.push_back({segment.begin, segment.parent});
    }
    documents.push_back({document.length, segments});
  }
  return nlohmann::json{rows.longest.num_tokens, rows.longest.num_labels, documents,
                        rows.num_groups, rows.is_all}
      .dump();
}

RowsOfFile rows_from(const std::string& text) {
  const nlohmann::json json = parse_json(text, "the rows of rank 0");
  RowsOfFile rows{.longest = {.num_tokens = json[0], .num_labels = json[1]},
                  .num_groups = json[3],
                  .is_all = json[4]};
  for (const nlohmann::json& document : json[2]) {
    Document& one = rows.longest.documents.emplace_back(Document{.length = document[0]});
    for (const nlohmann::json& segment : document[1]) {
      one.segments.push_back({segment[0], segment[1]});
    }
  }
  return rows;
}

std::string tokens(int64_t count) {
  return fmt::format("{} {}", with_commas(count), count == 1 ? "token" : "tokens");
}

/// Returns the longest row that the run allows, and says so.
LongestRow row_of_any(const RolloutLimits& limits) {
  LongestRow row{.lengths = row_of_any_rollouts(limits), .text = {}};
  row.text = fmt::format(
      "The longest row may have {}: {} of {}, each of {} (cutoff_len), if they share no tokens.",
      tokens(row.lengths.num_tokens), counted(limits.num_groups, "group"),
      counted(limits.policy.num_generations, "rollout"), tokens(limits.cutoff_len));
  return row;
}

LongestRow row_of_questions(const RolloutLimits& limits, const ExampleSet& questions) {
  LongestRow row;
  int64_t prompt = 0;
  for (int64_t i = 0; i < questions.size(); ++i) {
    const int64_t own = std::ssize(questions.example(i)->documents.front().input_ids);
    // The run refuses a longer question (sampled_rollouts).
    if (own < 1 || own + limits.policy.max_completion_length > limits.cutoff_len) continue;
    RowLengths lengths = row_of_answers(limits, own);
    if (lengths.num_tokens <= row.lengths.num_tokens) continue;
    row.lengths = std::move(lengths);
    prompt = own;
  }
  if (prompt == 0) return row_of_any(limits);
  const PolicySettings& policy = limits.policy;
  const bool has_turns = !policy.environment_command.empty() && policy.max_turns > 1;
  row.text = fmt::format(
      "The longest row may have {}: {} of a prompt of {} with {} of at most {}.",
      tokens(row.lengths.num_tokens), counted(limits.num_groups, "group"), tokens(prompt),
      counted(policy.num_generations, has_turns ? "conversation" : "answer"),
      has_turns ? fmt::format("{} (cutoff_len)", tokens(limits.cutoff_len))
                : fmt::format("{} (max_completion_length)", tokens(policy.max_completion_length)));
  return row;
}

/// Rank 0 reads the file.
LongestRow row_of_file(const FileRuleSettings& config, const OptimizationSettings& optimization,
                       const RunPlan& plan, const RolloutLimits& limits,
                       const LocalTime& template_time, Workers& workers) {
  const int64_t num_batches =
      (optimization.max_steps + limits.policy.num_iterations - 1) / limits.policy.num_iterations;
  const int64_t num_groups = product_of({num_batches, limits.num_groups, plan.parallel.data_size,
                                         optimization.gradient_accumulation_steps})
                                 .value_or(INT64_MAX);
  std::string text;
  all_or_none_patiently(workers.world(), workers.notices(), [&] {
    if (!workers.is_main()) return;
    const FileRules rules(config, plan.model.spec.vocab_size, template_time);
    text = text_of(rows_of_file(limits, rules.rules(), num_groups));
  });
  const RowsOfFile rows = rows_from(workers.world().gather_text(text)[0]);
  const std::string& path = limits.policy.rollouts;
  if (rows.is_all) {
    return {rows.longest,
            fmt::format("The longest row has {}, by the {} of {} that the run trains on.",
                        tokens(rows.longest.num_tokens), counted(num_groups, "group"), path)};
  }
  LongestRow row = row_of_any(limits);
  if (rows.num_groups > 0) {
    row.text += fmt::format(" In {}, the longest row of the first {} has {}.", path,
                            counted(rows.num_groups, "group"), tokens(rows.longest.num_tokens));
  }
  return row;
}

}  // namespace

LongestRow longest_row(const FileRuleSettings& config, const OptimizationSettings& optimization,
                       const RunPlan& plan, const RunData* data, const LocalTime& template_time,
                       Workers& workers) {
  const Stage& stage = stage_of(config.method);
  const int64_t batch_size = optimization.per_device_train_batch_size;
  if (stage.rollouts != RolloutUse::kNone) {
    const PolicySettings& policy = config.preferences.policy;
    const RolloutLimits limits{policy, config.data.cutoff_len, batch_size};
    if (data == nullptr) return row_of_any(limits);
    return policy.rollout == "file"
               ? row_of_file(config, optimization, plan, limits, template_time, workers)
               : row_of_questions(limits, *data->train);
  }
  if (!plan.by_degree.empty() && data != nullptr) {
    RowLengths lengths = row_lengths(*data->train, /*batch_size=*/1, stage.rows);
    // Short examples with the same processes fill a row.
    const int64_t most = plan.tokens_per_rank * plan.parallel.world_size;
    if (lengths.num_tokens < most) lengths = {.num_tokens = most, .num_labels = most};
    return {lengths,
            fmt::format("Each row gets as many processes as its length and work need: a process "
                        "has at most {} of a row, unless all processes have more.",
                        tokens(plan.tokens_per_rank))};
  }
  const bool is_early = data != nullptr && data->early;
  if (data != nullptr && !data->train->empty() && !is_early) {
    return {row_lengths(*data->train, batch_size, stage.rows, plan.parallel.sequence_size), ""};
  }
  const bool is_unknown = config.data.streaming || is_early;
  const int64_t num_documents = is_unknown && stage.rows == RowKind::kPair ? 2 : 1;
  const int64_t num_tokens = batch_size * num_documents * config.data.cutoff_len;
  return {{.num_tokens = num_tokens, .num_labels = num_tokens},
          is_unknown ? fmt::format("{} not known in advance; the longest row may have {} "
                                   "(cutoff_len).",
                                   is_early ? "The lengths of the rows are" : "Streamed rows are",
                                   tokens(num_tokens))
                     : ""};
}

}  // namespace longspan
