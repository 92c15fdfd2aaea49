#include "longspan/train/step.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "longspan/liveness/agreement.h"
#include "longspan/report/averages.h"
#include "longspan/session/host_sums.h"
#include "longspan/session/model_update.h"
#include "longspan/settings/choices.h"
#include "longspan/stages/objective.h"

namespace longspan {
namespace {

/// Flags that ranks sum beside the loss.
constexpr int64_t kRequested = 0, kToldToStop = 1;

}  // namespace

TrainingStep::TrainingStep(const OptimizationSettings& config, const StepSchedule& schedule,
                           Session& session, ExampleSource& source, const RunControl& control)
    : schedule_(schedule),
      session_(session),
      source_(source),
      control_(control),
      max_grad_norm_(config.max_grad_norm),
      nonfinite_(on_nonfinite_of(config), session.mesh(), session.updating(), session.events()) {}

StepResult TrainingStep::run(int64_t step, int64_t num_skipped) {
  session_.begin_step(step);
  if (!source_.prepare(step)) {
    StepResult stopped;
    const std::vector<bool> requested = gather_answers(session_.mesh().world, control_.requested());
    stopped.interrupted = std::ranges::any_of(requested, std::identity());
    stopped.left_out = !stopped.interrupted;
    return stopped;
  }
  const RowsOfStep taken = take_rows(step);
  const std::vector<Row>& rows = taken.rows;  // same on all SP members
  // The loss is a mean over the whole global batch. Its only denominator is known before any
  // computation.
  StepResult result{.counts = taken.counts ? taken.counts() : session_.count(rows),
                    .learning_rate = schedule_.learning_rate(step)};
  source_.check(result.counts.num_samples);  // before the source gives rows of the next step
  read_pictures_ahead(step, rows);
  const auto averages_before = session_.averages().sums();
  const RowLosses losses = session_.forward_backward(
      rows, result.counts.weight, [this] { return control_.requested(); }, /*ends_step=*/true);
  // A signal to one rank counts for all, so that they leave at the same step.
  const SumsOfStep sums = session_.sum_up(
      losses, {control_.requested() ? 1.0 : 0.0, control_.told_to_stop() ? 1.0 : 0.0});
  count_next(step);  // while gradients are summed
  // The host waits for a GPU once per step: for the norm. The sums have arrived by then. On a CPU
  // they are here, and may save the norm.
  const bool on_cpu = session_.context().device.is_cpu();
  const auto is_lost = [&] { return sums.flag(kRequested) || !std::isfinite(sums.loss()); };
  if (!on_cpu || !is_lost()) result.grad_norm = session_.reduce();
  result.loss = sums.loss();
  result.stops = sums.flag(kToldToStop);
  result.interrupted = sums.flag(kRequested);
  if (result.interrupted) return result;
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    session_.averages().set(averages_before);
    nonfinite_.leave_out({.step = step,
                          .loss = result.loss,
                          .grad_norm = result.grad_norm,
                          .learning_rate = result.learning_rate,
                          .rows = rows,
                          .own_losses = own_losses(rows, losses, result.counts.weight)},
                         num_skipped);
    result.skipped = true;
    session_.drop();
    return result;
  }
  if (max_grad_norm_ > 0) session_.clip(result.grad_norm, max_grad_norm_);
  session_.update(result.learning_rate);
  nonfinite_.end_series();
  return result;
}

TrainingStep::RowsOfStep TrainingStep::take_rows(int64_t step) {
  std::optional<RowsOfStep> ahead = std::exchange(next_, std::nullopt);
  if (ahead && ahead->step == step && ahead->failure) std::rethrow_exception(ahead->failure);
  RowsOfStep taken = ahead && ahead->step == step
                         ? *std::move(ahead)
                         : RowsOfStep{step, rows_of(schedule_.plan().place(step))};
  session_.read_ahead(taken.rows);
  return taken;
}

void TrainingStep::read_pictures_ahead(int64_t step, const std::vector<Row>& rows) {
  const bool has_pictures =
      std::ranges::any_of(rows, [](const Row& row) { return row.local.pictures != nullptr; });
  if (!has_pictures) return;
  make_next(step);
  if (next_) session_.read_ahead(next_->rows);
}

void TrainingStep::make_next(int64_t step) {
  if (next_ || schedule_.is_last(step) || !source_.gives_rows_ahead()) return;
  next_.emplace(step + 1, std::vector<Row>());
  try {
    next_->rows = rows_of(schedule_.plan().place(step + 1));
  } catch (...) {
    next_->failure = std::current_exception();
  }
}

void TrainingStep::count_next(int64_t step) {
  make_next(step);
  if (next_) next_->counts = session_.start_count(next_->rows);
}

std::vector<Row> TrainingStep::rows_of(const StepPlace& place) {
  std::vector<Row> rows;
  for (const DrawnRow& drawn : source_.rows(place)) {
    // In the last micro-batch, this data-parallel group may have no rows: it contributes zero.
    if (drawn.drawn.examples.empty() && !session_.context().idle_rows) continue;
    rows.push_back(session_.row(drawn));
  }
  return rows;
}

std::vector<double> TrainingStep::own_losses(const std::vector<Row>& rows, const RowLosses& losses,
                                             double total_weight) {
  std::vector<double> own;
  for (size_t i = 0; i < losses.contributions.size(); ++i) {
    const double loss = losses.contributions[i].item<double>() * total_weight /
                        std::max(1.0, session_.objective().weight(rows[i]));
    own.push_back(losses.replicated
                      ? loss
                      : sums_over(rows[i].sharers(), {loss}, session_.context().device)[0]);
  }
  return own;
}

}  // namespace longspan
