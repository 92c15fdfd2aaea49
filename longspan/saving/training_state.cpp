#include "longspan/saving/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "longspan/base/number_text.h"
#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/checksum_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"
#include "longspan/text/local_time.h"

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

/// JSON has no NaN and no infinity; a broken evaluation must not break later saves.
Json json_of(double number) {
  return std::isfinite(number) ? Json(number) : Json(number_text(number));
}

double number_from(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}

int64_t count_from(const Json& json, const char* key, int64_t least = 0) {
  return whole_number(json.at(key), key, least, kMostCounted);
}

Json json_of(const Settings& settings) {
  Json json = Json::object();
  for (const auto& [key, value] : settings) json[key] = value;
  return json;
}

Settings settings_from(const Json& json) {
  Settings settings;
  for (const auto& [key, value] : json.items())
    settings.emplace_back(key, value.get<std::string>());
  return settings;
}

std::string time_in(const Json& json) {
  const std::string text = json.value("moment", "");
  return text.empty() ? text : local_time_from(text).text;
}

Json json_of(const RunIdentity& identity) {
  return {{"stage", identity.stage},
          {"finetuning_type", identity.finetuning_type},
          {"trained", identity.trained},
          {"rows", identity.rows},
          {"num_rows", identity.num_rows},
          {"rows_per_step", identity.rows_per_step},
          {"seed", identity.seed},
          {"shuffled", identity.shuffled},
          {"moment", identity.template_time},
          {"rope_scaling", identity.rope_scaling},
          {"stored_numbers", identity.stored_numbers},
          {"settings", json_of(identity.settings)},
          {"contents", json_of_contents(identity.contents)}};
}

RunIdentity identity_from(const Json& json) {
  return {.stage = json.at("stage"),
          .finetuning_type = json.at("finetuning_type"),
          .trained = json.at("trained"),
          .rows = json.at("rows"),
          .num_rows = count_from(json, "num_rows"),
          .rows_per_step = count_from(json, "rows_per_step"),
          .seed = whole_number(json.at("seed"), "seed"),
          .shuffled = json.at("shuffled"),
          .template_time = time_in(json),
          .rope_scaling = json.value("rope_scaling", ""),
          .stored_numbers = json.value("stored_numbers", ""),
          .settings = settings_from(json.value("settings", Json::object())),
          .contents = contents_from(json.value("contents", Json::array()))};
}

Json json_of(const Progress& progress) {
  return {{"step", progress.step},
          {"total_steps", progress.total_steps},
          {"epoch", progress.epoch},
          {"num_tokens", progress.num_tokens},
          {"num_computed_tokens", progress.num_computed_tokens},
          {"elapsed_seconds", progress.elapsed_seconds}};
}

Progress progress_from(const Json& json) {
  return {.step = count_from(json, "step"),
          .total_steps = count_from(json, "total_steps"),
          .epoch = json.at("epoch"),
          .num_tokens = count_from(json, "num_tokens"),
          .num_computed_tokens = count_from(
              json, json.contains("num_computed_tokens") ? "num_computed_tokens" : "num_tokens"),
          .elapsed_seconds = json.at("elapsed_seconds")};
}

Json json_of(const EvaluationResult& result) {
  Json means = Json::array();
  for (const auto& [name, mean] : result.means) means.push_back({name, json_of(mean)});
  return {{"loss", json_of(result.loss)},      {"seconds", result.seconds},
          {"num_samples", result.num_samples}, {"num_batches", result.num_batches},
          {"generated", result.generated},     {"means", means}};
}

EvaluationResult evaluation_from(const Json& json) {
  EvaluationResult result{.loss = number_from(json.at("loss")),
                          .seconds = json.at("seconds"),
                          .num_samples = count_from(json, "num_samples"),
                          .num_batches = count_from(json, "num_batches"),
                          .means = {},
                          .generated = json.value("generated", false)};
  for (const Json& mean : json.at("means")) {
    result.means.emplace_back(mean.at(0), number_from(mean.at(1)));
  }
  return result;
}

Json json_of(const RankAverages& averages) {
  Json json = Json::object();
  for (const auto& [name, sum] : averages) {
    json[name] = {json_of(sum.first), json_of(sum.second)};
  }
  return json;
}

RankAverages averages_from(const Json& json) {
  RankAverages averages;
  for (const auto& [name, sum] : json.items()) {
    averages[name] = {number_from(sum.at(0)), number_from(sum.at(1))};
  }
  return averages;
}

Json json_of(const RunTotals& totals) {
  Json json = {{"progress", json_of(totals.progress)},
               {"loss_since_log", totals.loss_since_log},
               {"loss_in_all", totals.loss_in_all},
               {"steps_since_log", totals.steps_since_log},
               {"steps_with_loss", totals.steps_with_loss},
               {"num_samples", totals.num_samples},
               {"num_skipped", totals.num_skipped},
               {"last_evaluated_step", totals.last_evaluated_step}};
  if (totals.last_evaluated_step >= 0) json["last_evaluation"] = json_of(totals.last_evaluation);
  if (totals.evaluation_due) json["evaluation_due"] = true;
  return json;
}

RunTotals totals_from(const Json& json) {
  RunTotals totals{.progress = progress_from(json.at("progress")),
                   .loss_since_log = json.at("loss_since_log"),
                   .loss_in_all = json.at("loss_in_all"),
                   .steps_since_log = count_from(json, "steps_since_log"),
                   .steps_with_loss = count_from(json, "steps_with_loss"),
                   .num_samples = count_from(json, "num_samples"),
                   .num_skipped = count_from(json, "num_skipped"),
                   .last_evaluated_step = count_from(json, "last_evaluated_step", -1),
                   .last_evaluation = {},
                   .evaluation_due = json.value("evaluation_due", false)};
  if (json.contains("last_evaluation")) {
    totals.last_evaluation = evaluation_from(json.at("last_evaluation"));
  }
  return totals;
}

}  // namespace

double RunTotals::mean_loss() const {
  return loss_in_all / static_cast<double>(std::max<int64_t>(1, steps_with_loss));
}

void write_training_state(const std::string& folder, const TrainingState& state) {
  Json averages = Json::array();
  for (const RankAverages& rank : state.averages) averages.push_back(json_of(rank));
  Json json = {{"format", kFormat},
               {"launch", state.launch},
               {"job", state.job},
               {"saved_at", state.saved_at},
               {kCoversItself, true},
               {"world_size", state.world_size},
               {"sequence_parallel_size", state.sequence_size},
               {"run", json_of(state.identity)},
               {"totals", json_of(state.totals)},
               {"averages", averages}};
  if (!state.source.empty()) json["source"] = state.source;
  if (!state.objective.empty()) json["objective"] = state.objective;
  write_file_atomically(folder + "/" + kTrainingStateFile,
                        json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

TrainingState read_training_state(const std::string& folder) {
  const std::string path = folder + "/" + kTrainingStateFile;
  try {
    const Json json = read_ordered_json_file(model_file(folder, kTrainingStateFile),
                                             "training state", kMaxTableBytes);
    if (json.at("format") != kFormat) {
      throw UserError(fmt::format("its format is {}; this version of longspan reads {}",
                                  json.at("format").dump(), kFormat));
    }
    TrainingState state{
        .launch = json.at("launch"),
        .job = json.value("job", ""),
        .saved_at = json.at("saved_at"),
        .world_size =
            static_cast<int>(whole_number(json.at("world_size"), "world_size", 1, kMostIndexed)),
        .sequence_size = static_cast<int>(whole_number(json.at("sequence_parallel_size"),
                                                       "sequence_parallel_size", 1, kMostIndexed)),
        .identity = identity_from(json.at("run")),
        .totals = totals_from(json.at("totals")),
        .averages = {},
        .source = json.value("source", ""),
        .objective = json.value("objective", "")};
    for (const Json& rank : json.at("averages")) state.averages.push_back(averages_from(rank));
    return state;
  } catch (const std::exception& error) {  // from JSON, or for invalid text or counts
    throw UserError(fmt::format("{} is no training state of this version of longspan: {}.", path,
                                error.what()));
  }
}

std::string text_of(const RankAverages& averages) { return json_of(averages).dump(); }

RankAverages averages_from(const std::string& text) {
  return averages_from(parse_ordered_json(text, "averages"));
}

RankAverages averages_for(const TrainingState& state, int rank, int world_size) {
  if (static_cast<int>(state.averages.size()) == world_size) return state.averages[rank];
  RankAverages all;
  if (rank > 0) return all;
  for (const RankAverages& averages : state.averages) {
    for (const auto& [name, sum] : averages) {
      all[name].first += sum.first;
      all[name].second += sum.second;
    }
  }
  return all;
}

}  // namespace longspan
