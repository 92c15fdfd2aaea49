#include "longspan/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "longspan/comm/communication_error.h"
#include "longspan/config/choices.h"
#include "longspan/config/config.h"
#include "longspan/config/user_error.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/report/curves.h"
#include "longspan/saving/output_folders.h"
#include "longspan/train/evaluation.h"

namespace longspan {
namespace {

/// About the bytes of a run's reports: of all files but the log, and of a log line in both files
/// that have it.
constexpr int64_t kReportBytes = 64 << 10, kEntryBytes = 2 << 10;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Those that a token goes through.
int64_t num_parameters_without_embeddings(const std::vector<HeldParameter>& parameters,
                                          const ModelSpec& spec) {
  int64_t total = -idle_parameters_of(spec);
  for (const HeldParameter& parameter : parameters) {
    const ParameterRole role = parameter.spec.role;
    if (role != ParameterRole::kEmbedding && !is_buffer(role)) {
      total += parameter.spec.num_elements();
    }
  }
  return total;
}

}  // namespace

Trainer::Trainer(const TrainingJob& job)
    : context_(job.context),
      config_(job.context.config),
      world_(job.context.mesh.world),
      model_(job.context.model),
      objective_(job.objective),
      source_(job.source),
      eval_examples_(job.eval_set),
      host_(job.host),
      notices_(job.notices),
      heartbeat_(job.heartbeat),
      saving_(job.saving),
      reports_(job.reports),
      log_(job.reports.log.training_log()),
      console_(job.reports.console),
      identity_(job.identity),
      launch_(job.launch),
      sharded_(job.sharded),
      step_(job),
      steps_(step_.plan()),
      update_(step_.update()),
      averages_(step_.averages()),
      logging_steps_(steps_of(config_.logging_steps, steps_.total_steps)),
      eval_steps_(steps_of(config_.eval_steps.value_or(config_.logging_steps), steps_.total_steps)),
      save_steps_(steps_of(config_.save_steps, steps_.total_steps)),
      last_grad_norm_(kNone) {
  totals_.progress.total_steps = steps_.total_steps;
  log_.set_steps(logging_steps_, eval_steps_, save_steps_);
}

RunEnd Trainer::train() {
  const double start = seconds_now() - totals_.progress.elapsed_seconds;
  console_.show(totals_.progress, kNone);
  int64_t step = totals_.progress.step;
  try {
    totals_.evaluation_due = totals_.evaluation_due && !eval_examples_.empty();
    if (totals_.evaluation_due && !evaluate_now()) return stop();
    for (; step < steps_.total_steps; ++step) {
      heartbeat_.stands_at(step + 1, fmt::format("step {}", step + 1));
      const StepResult result = step_.run(step, totals_.num_skipped);
      if (result.interrupted) {
        console_.finish();
        return RunEnd::kInterrupted;
      }
      totals_.progress.elapsed_seconds = seconds_now() - start;
      if (after_step(step, result)) return stop();
    }
  } catch (const CommunicationError& error) {
    throw CommunicationError(fmt::format("Step {}: {}", step + 1, error.what()));
  }
  totals_.progress.elapsed_seconds = seconds_now() - start;
  console_.finish();
  return finish();
}

RunEnd Trainer::stop() {
  if (last_saved_step_ != totals_.progress.step && !save_last_checkpoint()) {
    return RunEnd::kInterrupted;
  }
  console_.finish();
  if (totals_.evaluation_due) {
    console_.say(
        fmt::format("The evaluation after step {} was left out{}.", totals_.progress.step,
                    config_.save_only_model ? "" : "; it comes first when the run goes on"));
  }
  return RunEnd::kStopped;
}

void Trainer::count(int64_t step, const StepResult& result) {
  Progress& progress = totals_.progress;
  progress.step = step + 1;
  progress.epoch = steps_.place(step).epochs_done;
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

void Trainer::say_entry() { console_.say(console_line(log_.history().back())); }

void Trainer::log_step(const StepResult& result) {
  const LoggedStep logged{
      .loss = totals_.steps_since_log == 0
                  ? kNone
                  : totals_.loss_since_log / static_cast<double>(totals_.steps_since_log),
      .grad_norm = last_grad_norm_,
      .learning_rate = result.learning_rate,
      .means =
          objective_.completed(averages_.means(world_, step_.names_of_averages(), context_.device)),
      .num_skipped = totals_.num_skipped};
  averages_.clear();
  last_grad_norm_ = kNone;
  totals_.loss_since_log = 0.0;
  totals_.steps_since_log = 0;
  all_or_none(world_, [&] {
    if (!is_main()) return;
    log_.add_step(totals_.progress, logged);
    say_entry();
  });
}

bool Trainer::after_step(int64_t step, const StepResult& result) {
  count(step, result);
  console_.show(totals_.progress, result.skipped ? kNone : result.loss);

  const int64_t done = step + 1;
  const bool last = done == steps_.total_steps;
  const bool epoch_ends = steps_.ends_epoch(step) || last;
  const auto is_due = [done](int64_t interval) { return interval > 0 && done % interval == 0; };
  const auto comes = [epoch_ends](const std::string& strategy, bool after_steps) {
    switch (interval_of(strategy)) {
      case Interval::kNever:
        return false;
      case Interval::kSteps:
        return after_steps;
      case Interval::kEpoch:
        return epoch_ends;
    }
    throw std::logic_error("a strategy without an interval");
  };

  if (comes(config_.logging_strategy, is_due(logging_steps_)) ||
      (config_.logging_first_step && done == 1)) {
    log_step(result);
  }
  const bool evaluates = comes(config_.eval_strategy, is_due(eval_steps_) || last);
  totals_.evaluation_due = evaluates && !eval_examples_.empty();
  bool stops = result.stops;
  if (totals_.evaluation_due && !stops) stops = !evaluate_now();

  const bool saves = comes(config_.save_strategy, is_due(save_steps_));
  const bool catches_up = checkpoint_owed_ && !saves && is_due(logging_steps_) && has_room_again();
  if (saves || catches_up) save_checkpoint();
  return stops && (!last || ends_with_evaluation());
}

bool Trainer::evaluate_now() {
  const Progress& progress = totals_.progress;
  heartbeat_.stands_at(progress.step, fmt::format("the evaluation after step {}", progress.step));
  totals_.evaluation_due = true;
  const std::optional<EvaluationResult> result =
      evaluate(objective_, context_, eval_examples_, [&] { return host_.told_to_stop(); });
  if (!result) return false;
  totals_.evaluation_due = false;
  totals_.last_evaluation = *result;
  totals_.last_evaluated_step = progress.step;
  all_or_none(world_, [&] {
    if (!is_main()) return;
    log_.add_evaluation(progress, totals_.last_evaluation);
    say_entry();
  });
  return true;
}

bool Trainer::evaluates_at_end() const {
  return (config_.do_eval || interval_of(config_.eval_strategy) != Interval::kNever) &&
         !eval_examples_.empty();
}

bool Trainer::ends_with_evaluation() const {
  return evaluates_at_end() && totals_.last_evaluated_step != totals_.progress.step;
}

bool Trainer::is_divided() const { return sharded_ != nullptr && !sharded_->all_are_here(); }

double Trainer::mean_loss() const {
  return totals_.loss_in_all / static_cast<double>(std::max<int64_t>(1, totals_.steps_with_loss));
}

RunEnd Trainer::finish() {
  const std::string memory = reports_.memory.end(world_);  // of training, not of saving
  if (ends_with_evaluation() && !evaluate_now()) return stop();
  const Progress& progress = totals_.progress;
  const SavedModel& saved = saving_.saver.model();
  const TrainingResult result{
      .loss = mean_loss(),
      .seconds = progress.elapsed_seconds,
      .num_samples = static_cast<double>(totals_.num_samples),
      .total_flos =
          6.0 * static_cast<double>(progress.num_computed_tokens) *
          static_cast<double>(num_parameters_without_embeddings(saved.all, saved.config.spec))};
  heartbeat_.stands_at(progress.step, "the saving of the model");
  const SentBytes sent{reports_.traffic.report(world_), reports_.expert_traffic.report(world_)};
  all_or_none(world_, [&] {
    if (!is_main()) return;
    log_.add_end(progress, result);
    say_entry();
  });
  if (!save_model() || !save_reports(result, sent)) return RunEnd::kInterrupted;
  if (!is_main()) return RunEnd::kDone;
  if (config_.plot_loss) {
    try {
      plot_curves(log_, record_in_);
    } catch (const UserError& error) {
      console_.say(fmt::format("warning: {}; the picture is left out.", error.what()));
    }
  }
  for (const std::string& table : {table_of(sent.attention), table_of(sent.experts)}) {
    if (!table.empty()) console_.say(table);
  }
  console_.say(memory);
  return RunEnd::kDone;
}

bool Trainer::save_model() {
  saved_in_ = saving_.patient_saver.save(
      {.name = "the model",
       .num_bytes = disk_need(disk()).model,
       .remains = saving_.checkpoints.last_text()},
      output_folders(config_), [&](const std::string& folder) {
        if (is_divided()) {
          return saving_.saver.save_final_together(folder, *sharded_, world_, notices_);
        }
        all_or_none_patiently(world_, notices_, [&] {
          if (is_main()) saving_.saver.save_final(folder, model_.parameters());
        });
      });
  return !saved_in_.empty();
}

bool Trainer::save_reports(const TrainingResult& result, const SentBytes& sent) {
  const auto write_reports = [&](const std::string& folder) {
    all_or_none_patiently(world_, notices_, [&] {
      if (!is_main()) return;
      const UninterruptedScope uninterrupted;
      log_.move_to(folder);  // also where it is there: what is said to be saved is on the disk
      log_.write_state(folder, totals_.progress);
      log_.write_train_results(totals_.progress, result);
      if (!table_of(sent.attention).empty()) write_report(folder, sent.attention);
      if (!table_of(sent.experts).empty()) write_report(folder, sent.experts);
      reports_.memory.write(folder);
      if (evaluates_at_end()) log_.write_eval_results(totals_.progress, totals_.last_evaluation);
    });
  };
  const std::string where = "the model is in " + saved_in_;
  std::vector<std::string> folders = output_folders(config_);
  std::erase(folders, saved_in_);
  folders.insert(folders.begin(), saved_in_);
  try {
    record_in_ = saving_.patient_saver.save(
        {.name = "the record of the run (logs and results)",
         .num_bytes = kReportBytes + kEntryBytes * std::ssize(log_.history()),
         .remains = where},
        folders, write_reports);
    return !record_in_.empty();
  } catch (const std::exception& error) {
    if (is_main() && is_agreed(world_, error)) {
      console_.say(fmt::format("warning: {}; what tells of the run cannot be written.", where));
    }
    throw;
  }
}

}  // namespace longspan
