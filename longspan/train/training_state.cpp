#include "longspan/train/training_state.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/config/number_text.h"
#include "longspan/config/user_error.h"
#include "longspan/input/json_text.h"

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

/// JSON knows no NaN and no infinity; a broken evaluation must not break what is saved after it.
Json json_of(double number) {
  return std::isfinite(number) ? Json(number) : Json(number_text(number));
}

double number_from(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
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
          {"rope_scaling", identity.rope_scaling}};
}

RunIdentity identity_from(const Json& json) {
  return {.stage = json.at("stage"),
          .finetuning_type = json.at("finetuning_type"),
          .trained = json.at("trained"),
          .rows = json.at("rows"),
          .num_rows = json.at("num_rows"),
          .rows_per_step = json.at("rows_per_step"),
          .seed = json.at("seed"),
          .shuffled = json.at("shuffled"),
          .rope_scaling = json.value("rope_scaling", "")};
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
  return {.step = json.at("step"),
          .total_steps = json.at("total_steps"),
          .epoch = json.at("epoch"),
          .num_tokens = json.at("num_tokens"),
          .num_computed_tokens = json.value("num_computed_tokens", json.at("num_tokens")),
          .elapsed_seconds = json.at("elapsed_seconds")};
}

Json json_of(const EvaluationResult& result) {
  Json means = Json::array();
  for (const auto& [name, mean] : result.means) means.push_back({name, json_of(mean)});
  return {{"loss", json_of(result.loss)},
          {"seconds", result.seconds},
          {"num_samples", result.num_samples},
          {"num_batches", result.num_batches},
          {"means", means}};
}

EvaluationResult evaluation_from(const Json& json) {
  EvaluationResult result{.loss = number_from(json.at("loss")),
                          .seconds = json.at("seconds"),
                          .num_samples = json.at("num_samples"),
                          .num_batches = json.at("num_batches")};
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
                   .steps_since_log = json.at("steps_since_log"),
                   .steps_with_loss = json.at("steps_with_loss"),
                   .num_samples = json.at("num_samples"),
                   .num_skipped = json.at("num_skipped"),
                   .last_evaluated_step = json.at("last_evaluated_step"),
                   .last_evaluation = {},
                   .evaluation_due = json.value("evaluation_due", false)};
  if (json.contains("last_evaluation")) {
    totals.last_evaluation = evaluation_from(json.at("last_evaluation"));
  }
  return totals;
}

}  // namespace

void write_training_state(const std::string& folder, const TrainingState& state) {
  Json averages = Json::array();
  for (const RankAverages& rank : state.averages) averages.push_back(json_of(rank));
  const Json json = {{"format", kFormat},
                     {"launch", state.launch},
                     {"job", state.job},
                     {"saved_at", state.saved_at},
                     {"world_size", state.world_size},
                     {"sequence_parallel_size", state.sequence_size},
                     {"run", json_of(state.identity)},
                     {"totals", json_of(state.totals)},
                     {"averages", averages}};
  write_file_atomically(folder + "/" + kTrainingStateFile, json.dump(1) + "\n");
}

TrainingState read_training_state(const std::string& folder) {
  const std::string path = folder + "/" + kTrainingStateFile;
  try {
    const Json json = read_ordered_json_file(path, "training state", kMaxTableBytes);
    if (json.at("format") != kFormat) {
      throw UserError(fmt::format("{}: its format is {}; this version of longspan reads {}.", path,
                                  json.at("format").dump(), kFormat));
    }
    TrainingState state{.launch = json.at("launch"),
                        .job = json.value("job", ""),
                        .saved_at = json.at("saved_at"),
                        .world_size = json.at("world_size"),
                        .sequence_size = json.at("sequence_parallel_size"),
                        .identity = identity_from(json.at("run")),
                        .totals = totals_from(json.at("totals")),
                        .averages = {}};
    for (const Json& rank : json.at("averages")) state.averages.push_back(averages_from(rank));
    return state;
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {  // JSON's, or of text that is no number
    throw UserError(fmt::format("{} is no training state of this version of longspan: {}.", path,
                                error.what()));
  }
}

void require_same_run(const std::string& checkpoint, const RunIdentity& then,
                      const RunIdentity& now, int64_t rows_per_micro_batch) {
  const auto require = [&](const std::string& what, const auto& was, const auto& is,
                           const std::string& remedy) {
    if (was == is) return;
    throw UserError(fmt::format(
        "{} cannot go on with this configuration: {} was {}, and is {} now. {} To begin anew, set "
        "overwrite_output_dir: true or choose another output_dir.",
        checkpoint, what, was, is, remedy));
  };
  require("stage", then.stage, now.stage, "Set it back.");
  require("finetuning_type", then.finetuning_type, now.finetuning_type, "Set it back.");
  require("the fingerprint of the trained parameters", then.trained, now.trained,
          "Set model_name_or_path, and the keys of LoRA or freezing, back.");
  if (!then.rope_scaling.empty()) {
    require("rope_scaling", then.rope_scaling, now.rope_scaling,
            "Set rope_scaling and cutoff_len, which decides the factor, back.");
  }
  require("the number of training rows", then.num_rows, now.num_rows,
          "Set dataset, val_size, max_samples and cutoff_len back.");
  require("the fingerprint of the training rows", then.rows, now.rows,
          "Set dataset, template, cutoff_len and what else makes the rows back.");
  require("seed", then.seed, now.seed, "Set it back.");
  require("disable_shuffling", !then.shuffled, !now.shuffled, "Set it back.");
  require(
      "the number of rows in a step, per_device_train_batch_size x data-parallel groups x "
      "gradient_accumulation_steps,",
      then.rows_per_step, now.rows_per_step,
      then.rows_per_step % rows_per_micro_batch == 0
          ? fmt::format("Set gradient_accumulation_steps: {}.",
                        then.rows_per_step / rows_per_micro_batch)
          : fmt::format("Choose the three so that their product is {}.", then.rows_per_step));
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
