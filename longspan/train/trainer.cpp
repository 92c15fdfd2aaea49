#include "longspan/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/liveness/agreement.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/report/averages.h"
#include "longspan/report/row_traffic.h"

namespace longspan {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Trainer::Trainer(Parts parts)
    : parts_(std::move(parts)), events_(parts_.session.events()), last_grad_norm_(kNone) {
  totals_.progress.total_steps = parts_.schedule.plan().total_steps;
  parts_.reports.log.training_log().set_steps(
      parts_.schedule.logging_steps(), parts_.schedule.eval_steps(), parts_.schedule.save_steps());
}

void Trainer::resume(const ResumePoint& from) {
  totals_ = parts_.checkpoints.resume(from, parts_.schedule.plan().total_steps);
}

RunEnd Trainer::train() {
  Progress& progress = totals_.progress;
  const double start = seconds_now() - progress.elapsed_seconds;
  events_.tell(Stepped{progress, kNone});
  int64_t step = progress.step;
  try {
    totals_.evaluation_due = totals_.evaluation_due && parts_.evaluate != nullptr;
    if (totals_.evaluation_due && !evaluate_now()) return stop();
    for (; step < progress.total_steps; ++step) {
      parts_.workers.heartbeat().stands_at(step + 1, fmt::format("step {}", step + 1));
      const StepResult result = timed_step(step);
      if (result.interrupted) return interrupted();
      if (result.left_out) return stop();
      progress.elapsed_seconds = seconds_now() - start;
      if (after_step(step, result)) return stop();
    }
  } catch (const CommunicationError& error) {
    throw CommunicationError(fmt::format("Step {}: {}", step + 1, error.what()), error.of_library);
  } catch (const std::exception& error) {
    // The ranks can still agree, so the checkpoint in progress is not lost.
    if (is_agreed(parts_.workers.world(), error)) {
      try {
        parts_.checkpoints.finish_or_warn(totals_);
      } catch (const CommunicationError&) {  // `error` is the cause
      }
    }
    throw;
  }
  progress.elapsed_seconds = seconds_now() - start;
  events_.tell(StepsEnded{});
  return finish();
}

RunEnd Trainer::interrupted() {
  events_.tell(StepsEnded{});
  parts_.checkpoints.finish_or_warn(totals_);
  return RunEnd::kInterrupted;
}

RunEnd Trainer::stop() {
  // An evaluation may have ended since the run is to end at once.
  const std::vector<bool> requested =
      gather_answers(parts_.workers.world(), parts_.control.requested());
  if (std::ranges::any_of(requested, std::identity())) return interrupted();
  if (!parts_.checkpoints.save_last(totals_)) return RunEnd::kInterrupted;
  events_.tell(StepsEnded{});
  if (totals_.evaluation_due) {
    events_.say(fmt::format(
        "The evaluation after step {} was left out{}.", totals_.progress.step,
        parts_.checkpoints.hold_state() ? "; it comes first when the run goes on" : ""));
  }
  return RunEnd::kStopped;
}

void Trainer::count(int64_t step, const StepResult& result) {
  Progress& progress = totals_.progress;
  progress.step = step + 1;
  progress.epoch = parts_.schedule.plan().place(step).epochs_done;
  progress.num_tokens += result.counts.num_tokens;
  progress.num_computed_tokens += result.counts.num_computed_tokens;
  totals_.num_samples += result.counts.num_samples;
  if (result.skipped) {
    ++totals_.num_skipped;
  } else {
    totals_.loss_in_all += result.loss;
    totals_.loss_since_log += result.loss;
    ++totals_.steps_since_log;
    ++totals_.steps_with_loss;
    last_grad_norm_ = result.grad_norm;
  }
}

void Trainer::log(const Progress& progress, const Measured& measured, std::vector<RankTime> ranks) {
  all_or_none(parts_.workers.world(), [&] {
    events_.tell(Logged{progress, measured, log_entry(progress, measured), std::move(ranks)});
  });
}

StepResult Trainer::timed_step(int64_t step) {
  const auto waited_so_far = [&] {
    const auto& collectives = parts_.workers.mesh().collectives;
    return collectives ? collectives->waited_seconds() : 0.0;
  };
  const double start = seconds_now(), waited = waited_so_far();
  StepResult result = parts_.step.run(step, totals_.num_skipped);
  ++times_.steps;
  times_.seconds += seconds_now() - start;
  times_.waited += waited_so_far() - waited;
  parts_.workers.heartbeat().has_stepped(times_);
  return result;
}

std::vector<RankTime> Trainer::times_of_ranks() {
  std::vector<std::optional<Beat>> beats = parts_.workers.heartbeat().beats();
  if (parts_.workers.world().size() == 1) beats.emplace_back(own_beat("steps"))->times = times_;
  std::vector<RankTime> times = parts_.rank_times.add(beats);
  if (const std::string slow = parts_.rank_times.straggler(); !slow.empty()) events_.say(slow);
  return times;
}

void Trainer::log_step(const StepResult& result) {
  const LoggedStep logged{
      .loss = totals_.steps_since_log == 0
                  ? kNone
                  : totals_.loss_since_log / static_cast<double>(totals_.steps_since_log),
      .grad_norm = last_grad_norm_,
      .learning_rate = result.learning_rate,
      .means = parts_.session.means(),
      .num_skipped = totals_.num_skipped};
  parts_.session.averages().clear();
  last_grad_norm_ = kNone;
  totals_.loss_since_log = 0.0;
  totals_.steps_since_log = 0;
  log(totals_.progress, logged, times_of_ranks());
}

bool Trainer::after_step(int64_t step, const StepResult& result) {
  count(step, result);
  parts_.checkpoints.go_on();
  events_.tell(Stepped{totals_.progress, result.skipped ? kNone : result.loss});
  const DueAfterStep due = parts_.schedule.due_after(step);
  if (due.log) log_step(result);
  totals_.evaluation_due = due.evaluate && parts_.evaluate != nullptr;
  bool stops = result.stops;
  if (totals_.evaluation_due && !stops) stops = !evaluate_now();
  if (due.save || (due.retry_save && parts_.checkpoints.can_catch_up(totals_))) {
    parts_.checkpoints.save(totals_);
  }
  return stops && (!parts_.schedule.is_last(step) || ends_with_evaluation());
}

bool Trainer::evaluate_now() {
  const Progress& progress = totals_.progress;
  parts_.workers.heartbeat().stands_at(progress.step,
                                       fmt::format("the evaluation after step {}", progress.step));
  totals_.evaluation_due = true;
  const std::optional<EvaluationResult> result = parts_.evaluate();
  if (!result) return false;
  totals_.evaluation_due = false;
  totals_.last_evaluation = *result;
  totals_.last_evaluated_step = progress.step;
  log(progress, totals_.last_evaluation);
  return true;
}

bool Trainer::evaluates_at_end() const {
  return parts_.schedule.evaluates_at_end() && parts_.evaluate != nullptr;
}

bool Trainer::ends_with_evaluation() const {
  return evaluates_at_end() && totals_.last_evaluated_step != totals_.progress.step;
}

RunEnd Trainer::finish() {
  const std::string memory =
      parts_.reports.memory.end(parts_.workers.world());  // of training, without saving
  if (!parts_.reports.memory.measured().empty()) {
    events_.tell(MemoryMeasured{parts_.reports.memory.measured()});
  }
  // First, since a failure of the last evaluation must not cost the last checkpoint.
  parts_.checkpoints.finish(totals_);
  if (ends_with_evaluation() && !evaluate_now()) return stop();
  RunRecord record{.progress = totals_.progress,
                   .training = parts_.results.summed_up(totals_),
                   .evaluation = std::nullopt,
                   .sent = {}};
  if (evaluates_at_end()) record.evaluation = totals_.last_evaluation;
  parts_.workers.heartbeat().stands_at(record.progress.step, "the saving of the model");
  record.sent = parts_.session.traffic().report(parts_.workers.world());
  log(record.progress, record.training);
  if (!parts_.results.save_model(totals_) || !parts_.results.save_record(record))
    return RunEnd::kInterrupted;
  if (!parts_.workers.is_main()) return RunEnd::kDone;
  for (const std::string& table : tables_of(record.sent)) events_.say(table);
  events_.say(memory);
  return RunEnd::kDone;
}

}  // namespace longspan
