#include "longspan/train/trainer.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <optional>
#include <string>

#include "longspan/liveness/agreement.h"
#include "longspan/rendezvous/communication_error.h"

namespace longspan {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Trainer::Trainer(Workers& workers, const StepSchedule& schedule, TrainingStep& step,
                 RunEvaluation& evaluation, RunCheckpoints& checkpoints, RunResults& results,
                 RunReports& reports)
    : workers_(workers),
      schedule_(schedule),
      step_(step),
      evaluation_(evaluation),
      checkpoints_(checkpoints),
      results_(results),
      reports_(reports),
      last_grad_norm_(kNone) {
  totals_.progress.total_steps = schedule.plan().total_steps;
  reports.log.training_log().set_steps(schedule.logging_steps(), schedule.eval_steps(),
                                       schedule.save_steps());
}

void Trainer::resume(const ResumePoint& from) {
  totals_ = checkpoints_.resume(from, schedule_.plan().total_steps);
}

RunEnd Trainer::train() {
  Progress& progress = totals_.progress;
  const double start = seconds_now() - progress.elapsed_seconds;
  reports_.console.show(progress, kNone);
  int64_t step = progress.step;
  try {
    totals_.evaluation_due = totals_.evaluation_due && evaluation_.has_examples();
    if (totals_.evaluation_due && !evaluate_now()) return stop();
    for (; step < progress.total_steps; ++step) {
      workers_.heartbeat().stands_at(step + 1, fmt::format("step {}", step + 1));
      const StepResult result = step_.run(step, totals_.num_skipped);
      if (result.interrupted) {
        reports_.console.finish();
        return RunEnd::kInterrupted;
      }
      progress.elapsed_seconds = seconds_now() - start;
      if (after_step(step, result)) return stop();
    }
  } catch (const CommunicationError& error) {
    throw CommunicationError(fmt::format("Step {}: {}", step + 1, error.what()), error.of_library);
  }
  progress.elapsed_seconds = seconds_now() - start;
  reports_.console.finish();
  return finish();
}

RunEnd Trainer::stop() {
  if (!checkpoints_.save_last(totals_)) return RunEnd::kInterrupted;
  reports_.console.finish();
  if (totals_.evaluation_due) {
    reports_.console.say(
        fmt::format("The evaluation after step {} was left out{}.", totals_.progress.step,
                    checkpoints_.hold_state() ? "; it comes first when the run goes on" : ""));
  }
  return RunEnd::kStopped;
}

void Trainer::count(int64_t step, const StepResult& result) {
  Progress& progress = totals_.progress;
  progress.step = step + 1;
  progress.epoch = schedule_.plan().place(step).epochs_done;
  progress.num_tokens += result.num_tokens;
  progress.num_computed_tokens += result.num_computed_tokens;
  totals_.num_samples += result.num_samples;
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

void Trainer::log(const std::function<void(TrainingLog&)>& add) {
  all_or_none(workers_.world(), [&] {
    if (!workers_.is_main()) return;
    TrainingLog& log = reports_.log.training_log();
    add(log);
    reports_.console.say(console_line(log.history().back()));
  });
}

void Trainer::log_step(const StepResult& result) {
  const LoggedStep logged{
      .loss = totals_.steps_since_log == 0
                  ? kNone
                  : totals_.loss_since_log / static_cast<double>(totals_.steps_since_log),
      .grad_norm = last_grad_norm_,
      .learning_rate = result.learning_rate,
      .means = step_.means(),
      .num_skipped = totals_.num_skipped};
  step_.averages().clear();
  last_grad_norm_ = kNone;
  totals_.loss_since_log = 0.0;
  totals_.steps_since_log = 0;
  log([&](TrainingLog& log) { log.add_step(totals_.progress, logged); });
}

bool Trainer::after_step(int64_t step, const StepResult& result) {
  count(step, result);
  reports_.console.show(totals_.progress, result.skipped ? kNone : result.loss);
  const DueAfterStep due = schedule_.due_after(step);
  if (due.log) log_step(result);
  totals_.evaluation_due = due.evaluate && evaluation_.has_examples();
  bool stops = result.stops;
  if (totals_.evaluation_due && !stops) stops = !evaluate_now();
  if (due.save || (due.retry_save && checkpoints_.can_catch_up(totals_))) {
    checkpoints_.save(totals_);
  }
  return stops && (!schedule_.is_last(step) || ends_with_evaluation());
}

bool Trainer::evaluate_now() {
  const Progress& progress = totals_.progress;
  workers_.heartbeat().stands_at(progress.step,
                                 fmt::format("the evaluation after step {}", progress.step));
  totals_.evaluation_due = true;
  const std::optional<EvaluationResult> result = evaluation_.run();
  if (!result) return false;
  totals_.evaluation_due = false;
  totals_.last_evaluation = *result;
  totals_.last_evaluated_step = progress.step;
  log([&](TrainingLog& log) { log.add_evaluation(progress, totals_.last_evaluation); });
  return true;
}

bool Trainer::evaluates_at_end() const {
  return schedule_.evaluates_at_end() && evaluation_.has_examples();
}

bool Trainer::ends_with_evaluation() const {
  return evaluates_at_end() && totals_.last_evaluated_step != totals_.progress.step;
}

RunEnd Trainer::finish() {
  const std::string memory = reports_.memory.end(workers_.world());  // of training, without saving
  if (ends_with_evaluation() && !evaluate_now()) return stop();
  RunRecord record{.progress = totals_.progress,
                   .training = results_.summed_up(totals_),
                   .evaluation = std::nullopt,
                   .sent = {}};
  if (evaluates_at_end()) record.evaluation = totals_.last_evaluation;
  workers_.heartbeat().stands_at(record.progress.step, "the saving of the model");
  record.sent = reports_.traffic.report(workers_.world());
  log([&](TrainingLog& log) { log.add_end(record.progress, record.training); });
  if (!results_.save_model(totals_) || !results_.save_record(record)) return RunEnd::kInterrupted;
  if (!workers_.is_main()) return RunEnd::kDone;
  results_.show(record.sent);
  reports_.console.say(memory);
  return RunEnd::kDone;
}

}  // namespace longspan
