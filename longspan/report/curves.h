// Plots of a run: training_loss.png, training_eval_loss.png, and one for each drawn mean of the
// stage (Stage::drawn). No torch.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "longspan/report/training_log.h"

namespace longspan {

/// Exponential moving average as in LLaMA-Factory; its weight depends on the number of points: 1.8
/// * (sigmoid(0.05 * points) - 0.5).
std::vector<double> smooth(const std::vector<double>& values);

/// Plots the curves with points in the log into `folder`. Throws UserError.
void plot_curves(const TrainingLog& log, const std::string& folder);

/// Returns the files that plot_curves() writes, for all stages.
std::set<std::string> pictures_of_runs();

}  // namespace longspan
