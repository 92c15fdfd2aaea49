#include "longspan/report/training_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char *kLogFile = "trainer_log.jsonl", *kStateFile = "trainer_state.json";
constexpr const char* kAllResults = "all_results.json";

double number_of(const LogEntry::value_type::second_type& value) {
  return std::visit([](auto number) { return static_cast<double>(number); }, value);
}

Json to_json(const LogEntry& entry) {
  Json json = Json::object();
  for (const auto& [key, value] : entry) {
    std::visit([&json, &name = key](auto number) { json[name] = number; }, value);
  }
  return json;
}

/// Returns the numbers among the values of an object.
LogEntry numbers_of(const Json& json) {
  LogEntry entry;
  for (const auto& [key, value] : json.items()) {
    // The step is an integer; other programs may also write 0.0 as one.
    const bool whole = value.is_number_integer() &&
                       (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
    if (whole) entry.emplace_back(key, value.get<int64_t>());
    if (value.is_number() && !whole) entry.emplace_back(key, value.get<double>());
  }
  return entry;
}

void append(LogEntry& entry, const LogEntry& more) {
  entry.insert(entry.end(), more.begin(), more.end());
}

/// The rates of transformers' speed_metrics.
LogEntry speed(const std::string& split, double seconds, double num_samples, double num_steps) {
  return {{split + "_runtime", seconds},
          {split + "_samples_per_second", seconds > 0 ? num_samples / seconds : 0.0},
          {split + "_steps_per_second", seconds > 0 ? num_steps / seconds : 0.0}};
}

LogEntry fields_of(const std::string& split, const EvaluationResult& result) {
  LogEntry entry;
  if (!result.generated) entry.emplace_back(split + "_loss", result.loss);
  for (const auto& [name, mean] : result.means) entry.emplace_back(split + "_" + name, mean);
  append(entry, speed(split, result.seconds, static_cast<double>(result.num_samples),
                      static_cast<double>(result.num_batches)));
  return entry;
}

LogEntry fields_of(const Progress& /*progress*/, const EvaluationResult& result) {
  return fields_of("eval", result);
}

LogEntry fields_of(const Progress& progress, const TrainingResult& result) {
  LogEntry entry = {{"total_flos", result.total_flos}, {"train_loss", result.loss}};
  append(entry,
         speed("train", result.seconds, result.num_samples, static_cast<double>(progress.step)));
  entry.emplace_back(
      "train_tokens_per_second",
      result.seconds > 0 ? static_cast<double>(progress.num_tokens) / result.seconds : 0.0);
  if (progress.shares_tokens()) {
    entry.emplace_back("train_computed_tokens_per_second",
                       result.seconds > 0
                           ? static_cast<double>(progress.num_computed_tokens) / result.seconds
                           : 0.0);
  }
  return entry;
}

LogEntry fields_of(const Progress& /*progress*/, const LoggedStep& step) {
  LogEntry entry;
  if (!std::isnan(step.loss)) entry.emplace_back("loss", step.loss);
  if (!std::isnan(step.grad_norm)) entry.emplace_back("grad_norm", step.grad_norm);
  entry.emplace_back("learning_rate", step.learning_rate);
  for (const auto& [name, mean] : step.means) entry.emplace_back(name, mean);
  if (step.num_skipped > 0) entry.emplace_back("skipped_steps", step.num_skipped);
  return entry;
}

/// The numbers that trainer_log.jsonl has, under LLaMA-Factory's names.
LogEntry line_fields_of(const LoggedStep& step, std::span<const DrawnMean> means) {
  LogEntry fields;
  if (!std::isnan(step.loss)) fields.emplace_back("loss", step.loss);
  for (const auto& [name, mean] : step.means) {
    const auto drawn = std::ranges::find(means, name, &DrawnMean::name);
    if (drawn != means.end()) fields.emplace_back(drawn->log_name, mean);
  }
  if (step.num_skipped > 0) fields.emplace_back("skipped_steps", step.num_skipped);
  fields.emplace_back("lr", step.learning_rate);
  return fields;
}

LogEntry line_fields_of(const EvaluationResult& result, std::span<const DrawnMean> /*means*/) {
  if (result.generated) return {};
  return {{"eval_loss", result.loss}};
}

LogEntry line_fields_of(const TrainingResult& /*result*/, std::span<const DrawnMean> /*means*/) {
  return {};
}

/// A line of trainer_log.jsonl, with the keys that LLaMA-Factory's web page and scripts read.
Json log_line(const Progress& progress, const LogEntry& measured) {
  Json line = {{"current_steps", progress.step}, {"total_steps", progress.total_steps}};
  line.update(to_json(measured));
  line["epoch"] = progress.epoch;
  line["percentage"] = progress.total_steps > 0 ? 100.0 * static_cast<double>(progress.step) /
                                                      static_cast<double>(progress.total_steps)
                                                : 100.0;
  line["elapsed_time"] = format_duration(progress.elapsed_seconds);
  line["remaining_time"] = format_duration(progress.remaining_seconds());
  line["throughput"] = progress.tokens_per_second();
  line["total_tokens"] = progress.num_tokens;
  if (progress.shares_tokens()) {
    line["computed_throughput"] = progress.computed_tokens_per_second();
    line["computed_tokens"] = progress.num_computed_tokens;
  }
  return line;
}

}  // namespace

LogEntry log_entry(const Progress& progress, const Measured& measured) {
  LogEntry entry =
      std::visit([&](const auto& values) { return fields_of(progress, values); }, measured);
  append(entry, {{"epoch", progress.epoch}, {"step", progress.step}});
  return entry;
}

double Progress::remaining_seconds() const {
  if (step == 0) return 0.0;
  return elapsed_seconds / static_cast<double>(step) * static_cast<double>(total_steps - step);
}

double Progress::tokens_per_second() const {
  return elapsed_seconds > 0 ? static_cast<double>(num_tokens) / elapsed_seconds : 0.0;
}

double Progress::computed_tokens_per_second() const {
  return elapsed_seconds > 0 ? static_cast<double>(num_computed_tokens) / elapsed_seconds : 0.0;
}

TrainingLog::TrainingLog(std::string folder, const RunConstants& constants)
    : folder_(std::move(folder)), constants_(constants) {}

void TrainingLog::warn(std::function<void(const std::string&)> listener) {
  warning_ = std::move(listener);
}

void TrainingLog::add(const Progress& progress, const Measured& measured) {
  history_.push_back(log_entry(progress, measured));
  const LogEntry numbers = std::visit(
      [&](const auto& values) { return line_fields_of(values, constants_.drawn); }, measured);
  append_line(log_line(progress, numbers).dump() + "\n");
}

void TrainingLog::set_steps(int64_t logging, int64_t evaluation, int64_t saving) {
  constants_.logging_steps = logging;
  constants_.eval_steps = evaluation;
  constants_.save_steps = saving;
}

void TrainingLog::append_line(const std::string& line) {
  lines_ += line;
  const std::string path = folder_ + "/" + kLogFile;
  try {
    if (lags_behind_) {  // it may end with an incomplete line
      write_file_atomically(path, lines_);
      lags_behind_ = false;
      return;
    }
    append_to_file(path, line);
  } catch (const UserError& error) {
    lags_behind_ = true;
    if (const auto warning = std::exchange(warning_, {})) {
      warning(
          fmt::format("{} The run goes on, and the next line writes this one too.", error.what()));
    }
  }
}

void TrainingLog::move_to(const std::string& folder) {
  folder_ = folder;
  lags_behind_ = true;  // until the file is written
  write_file_atomically(folder_ + "/" + kLogFile, lines_);
  lags_behind_ = false;
}

std::string TrainingLog::state_text(const Progress& progress) const {
  Json state = {{"best_global_step", nullptr},         {"best_metric", nullptr},
                {"best_model_checkpoint", nullptr},    {"epoch", progress.epoch},
                {"eval_steps", constants_.eval_steps}, {"global_step", progress.step},
                {"is_hyper_param_search", false},      {"is_local_process_zero", true},
                {"is_world_process_zero", true}};
  Json history = Json::array();
  for (const LogEntry& entry : history_) history.push_back(to_json(entry));
  state["log_history"] = std::move(history);
  state["logging_steps"] = constants_.logging_steps;
  state["max_steps"] = progress.total_steps;
  state["num_input_tokens_seen"] = progress.num_tokens;
  state["num_train_epochs"] = constants_.num_train_epochs;
  state["save_steps"] = constants_.save_steps;
  state["stateful_callbacks"] = Json::object();
  state["total_flos"] = 0.0;
  for (const LogEntry& entry : history_) {
    for (const auto& [key, value] : entry) {
      if (key == "total_flos") state["total_flos"] = number_of(value);
    }
  }
  state["train_batch_size"] = constants_.train_batch_size;
  state["trial_name"] = nullptr;
  state["trial_params"] = nullptr;
  return state.dump(2) + "\n";
}

void TrainingLog::write_state(const std::string& folder, const Progress& progress) const {
  write_file_atomically(folder + "/" + kStateFile, state_text(progress));
}

std::map<std::string, std::string> TrainingLog::checkpoint_files(const Progress& progress) const {
  return {{kStateFile, state_text(progress)}, {kLogFile, lines_}};
}

void TrainingLog::restore(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kStateFile;
  const Json state =
      read_ordered_json_file(model_file(checkpoint, kStateFile), "training log", kMaxTableBytes);
  if (!state.is_object() || !state.contains("log_history") || !state["log_history"].is_array()) {
    throw UserError(fmt::format("{} has no log_history.", path));
  }
  history_.clear();
  for (const Json& json : state["log_history"]) {
    if (!json.is_object()) {
      throw UserError(
          fmt::format("{}: log_history holds a {}; wanted are objects.", path, json.type_name()));
    }
    history_.push_back(numbers_of(json));
  }
  lines_ = read_text_file(model_file(checkpoint, kLogFile), "training log", kMaxTableBytes);
  write_file_atomically(folder_ + "/" + kLogFile, lines_);
}

void TrainingLog::restore_results() {
  const std::string path = folder_ + "/" + kAllResults;
  if (!is_there(path)) return;
  const Json results =
      read_ordered_json_file(model_file(folder_, kAllResults), "results", kMaxTableBytes);
  if (!results.is_object()) throw UserError(fmt::format("{} is not a JSON object.", path));
  all_results_ = numbers_of(results);
}

void TrainingLog::write_results(const std::string& name, const LogEntry& entry) {
  write_file_atomically(folder_ + "/" + name, to_json(entry).dump(4) + "\n");
  append(all_results_, entry);
  write_file_atomically(folder_ + "/" + kAllResults, to_json(all_results_).dump(4) + "\n");
}

void TrainingLog::write_train_results(const Progress& progress, const TrainingResult& result) {
  LogEntry entry = {{"epoch", progress.epoch}, {"num_input_tokens_seen", progress.num_tokens}};
  if (progress.shares_tokens()) {
    entry.emplace_back("num_computed_tokens", progress.num_computed_tokens);
  }
  append(entry, fields_of(progress, result));
  write_results("train_results.json", entry);
}

void TrainingLog::write_eval_results(const Progress& progress, const EvaluationResult& result) {
  LogEntry entry = {{"epoch", progress.epoch}};
  append(entry, fields_of(progress, result));
  write_results("eval_results.json", entry);
}

void TrainingLog::write_predict_results(const EvaluationResult& result) {
  write_results("predict_results.json", fields_of("predict", result));
}

std::pair<std::vector<double>, std::vector<double>> TrainingLog::curve(
    const std::string& key) const {
  std::pair<std::vector<double>, std::vector<double>> points;
  for (const LogEntry& entry : history_) {
    // The step is the last key, except in files of other programs.
    const auto step = std::ranges::find(entry, "step", &LogEntry::value_type::first);
    if (step == entry.end()) continue;
    for (const auto& [name, value] : entry) {
      if (name != key) continue;
      points.first.push_back(number_of(step->second));
      points.second.push_back(number_of(value));
    }
  }
  return points;
}

std::string console_line(const LogEntry& entry) {
  std::string line;
  for (const auto& [key, value] : entry) {
    if (key == "step") continue;
    line += fmt::format("{}'{}': ", line.empty() ? "{" : ", ", key);
    if (const auto* number = std::get_if<double>(&value)) {
      line += std::isnan(*number) ? "nan" : fmt::format("{:.6g}", *number);
    } else {
      line += fmt::format("{}", std::get<int64_t>(value));
    }
  }
  return line + "}";
}

std::string format_duration(double seconds) {
  const int64_t whole = std::isfinite(seconds) ? std::max<int64_t>(0, std::llround(seconds)) : 0;
  const int64_t days = whole / 86400;
  const std::string clock =
      fmt::format("{}:{:02}:{:02}", whole % 86400 / 3600, whole / 60 % 60, whole % 60);
  if (days == 0) return clock;
  return counted(days, "day") + ", " + clock;
}

}  // namespace longspan
