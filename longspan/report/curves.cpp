#include "longspan/report/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "longspan/base/user_error.h"
#include "longspan/text/plot.h"

namespace longspan {
namespace {

constexpr const char *kLoss = "loss", *kEvaluationLoss = "eval_loss";

/// Returns the file name for a log entry's key, e.g. training_eval_loss.png.
std::string picture_of(std::string_view key) {
  std::string name(key);
  std::ranges::replace(name, '/', '_');
  return fmt::format("training_{}.png", name);
}

void plot(const TrainingLog& log, const std::string& key, const std::string& what,
          const std::string& y_label, const std::string& folder) {
  const auto [steps, values] = log.curve(key);
  if (steps.empty()) return;
  PlotPanel panel{.title = what, .x_label = "step", .y_label = y_label, .curves = {}};
  panel.curves.push_back({.label = "original", .x = steps, .y = values, .faint = true});
  panel.curves.push_back({.label = "smoothed", .x = steps, .y = smooth(values)});
  const std::string path = fmt::format("{}/{}", folder, picture_of(key));
  try {
    write_plot(path, {panel});
  } catch (const UserError&) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);  // an incomplete file
    throw;
  }
}

}  // namespace

std::vector<double> smooth(const std::vector<double>& values) {
  const double num_values = static_cast<double>(values.size());
  const double weight = 1.8 * (1.0 / (1.0 + std::exp(-0.05 * num_values)) - 0.5);
  std::vector<double> smoothed;
  smoothed.reserve(values.size());
  for (double value : values) {
    const double last = smoothed.empty() ? value : smoothed.back();
    smoothed.push_back(weight * last + (1.0 - weight) * value);
  }
  return smoothed;
}

void plot_curves(const TrainingLog& log, const std::string& folder) {
  plot(log, kLoss, "Training loss", "loss", folder);
  plot(log, kEvaluationLoss, "Evaluation loss", "loss", folder);
  for (const DrawnMean& mean : log.drawn()) {
    plot(log, std::string(mean.name), std::string(mean.title), std::string(mean.y_label), folder);
  }
}

Pictures::Pictures(const TrainingLog& log, Events& events) : log_(log), events_(events) {
  events_.add_first(*this);
}

void Pictures::take(const Event& event) {
  const ModelSaved* saved = std::get_if<ModelSaved>(&event);
  if (saved == nullptr || saved->record_folder.empty()) return;
  try {
    plot_curves(log_, saved->record_folder);
  } catch (const UserError& error) {
    events_.say(fmt::format("warning: {}; the picture is left out.", error.what()));
  }
}

std::set<std::string> pictures_of_runs() {
  std::set<std::string> names = {picture_of(kLoss), picture_of(kEvaluationLoss)};
  for (const Stage* stage : all_stages()) {
    for (const DrawnMean& mean : stage->drawn) names.insert(picture_of(mean.name));
  }
  return names;
}

}  // namespace longspan
