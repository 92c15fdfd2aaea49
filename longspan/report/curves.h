// Plots of a run, drawn by a sink of its events: training_loss.png, training_eval_loss.png, and one
// plot for each drawn mean of the stage (Stage::drawn). No torch.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "longspan/report/events.h"
#include "longspan/report/training_log.h"

namespace longspan {

/// Exponential moving average as in LLaMA-Factory; the average's weight depends on the number of
/// points: 1.8 * (sigmoid(0.05 * points) - 0.5).
std::vector<double> smooth(const std::vector<double>& values);

/// Plots the curves with points in the log into `folder`. Throws UserError.
void plot_curves(const TrainingLog& log, const std::string& folder);

/// Plots a run's curves when its model and logs are saved, into the folder of the logs. A picture
/// that cannot be written is left out, with a warning.
class Pictures final : public EventSink {
 public:
  /// Becomes a sink of `events`. Both arguments must outlive this object. No event may be sent
  /// after the end of this object.
  Pictures(const TrainingLog& log, Events& events);
  Pictures(const Pictures&) = delete;
  Pictures& operator=(const Pictures&) = delete;

  void take(const Event& event) override;

 private:
  const TrainingLog& log_;
  Events& events_;
};

/// Returns the files that plot_curves() writes, for all stages.
std::set<std::string> pictures_of_runs();

}  // namespace longspan
