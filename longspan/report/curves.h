// Pictures of a run: training_loss.png, training_eval_loss.png, and one of each mean that the stage
// draws (Stage::drawn). No torch.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "longspan/report/training_log.h"

namespace longspan {

/// Exponential moving average whose weight grows with the number of points, as LLaMA-Factory
/// smooths: 1.8 * (sigmoid(0.05 * points) - 0.5).
std::vector<double> smooth(const std::vector<double>& values);

/// Draws the curves that the log has points for into `folder`. Throws UserError.
void plot_curves(const TrainingLog& log, const std::string& folder);

/// The files that plot_curves() writes, of all stages.
std::set<std::string> pictures_of_runs();

}  // namespace longspan
