#include "longspan/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "longspan/comm/communication_error.h"
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
    : job_(job),
      context_(job.context),
      config_(job.context.config),
      world_(job.context.mesh.world),
      model_(job.context.model),
      step_(job),
      steps_(step_.plan()),
      update_(step_.update()),
      averages_(step_.averages()),
      logging_steps_(steps_of(config_.logging_steps, steps_.total_steps)),
      eval_steps_(steps_of(config_.eval_steps.value_or(config_.logging_steps), steps_.total_steps)),
      save_steps_(steps_of(config_.save_steps, steps_.total_steps)),
      last_grad_norm_(kNone) {
  totals_.progress.total_steps = steps_.total_steps;
  job_.log.set_steps(logging_steps_, eval_steps_, save_steps_);
}

RunEnd Trainer::train() {
  const double start = seconds_now() - totals_.progress.elapsed_seconds;
  job_.console.show(totals_.progress, kNone);
  int64_t step = totals_.progress.step;
  try {
    totals_.evaluation_due = totals_.evaluation_due && !job_.eval_examples.empty();
    if (totals_.evaluation_due && !evaluate_now()) return stop();
    for (; step < steps_.total_steps; ++step) {
      job_.heartbeat.stands_at(step + 1, fmt::format("step {}", step + 1));
      const StepResult result = step_.run(step, totals_.num_skipped);
      if (result.interrupted) {
        job_.console.finish();
        return RunEnd::kInterrupted;
      }
      totals_.progress.elapsed_seconds = seconds_now() - start;
      if (after_step(step, result)) return stop();
    }
  } catch (const CommunicationError& error) {
    throw CommunicationError(fmt::format("Step {}: {}", step + 1, error.what()));
  }
  totals_.progress.elapsed_seconds = seconds_now() - start;
  job_.console.finish();
  return finish();
}

RunEnd Trainer::stop() {
  if (last_saved_step_ != totals_.progress.step && !save_last_checkpoint()) {
    return RunEnd::kInterrupted;
  }
  job_.console.finish();
  if (totals_.evaluation_due) {
    job_.console.say(
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

void Trainer::log_step(const StepResult& result) {
  const LoggedStep logged{
      .loss = totals_.steps_since_log == 0
                  ? kNone
                  : totals_.loss_since_log / static_cast<double>(totals_.steps_since_log),
      .grad_norm = last_grad_norm_,
      .learning_rate = result.learning_rate,
      .means = job_.objective.completed(
          averages_.means(world_, step_.names_of_averages(), context_.device)),
      .num_skipped = totals_.num_skipped};
  averages_.clear();
  last_grad_norm_ = kNone;
  totals_.loss_since_log = 0.0;
  totals_.steps_since_log = 0;
  all_or_none(world_, [&] {
    if (!is_main()) return;
    job_.log.add_step(totals_.progress, logged);
    job_.console.say(console_line(job_.log.history().back()));
  });
}

bool Trainer::after_step(int64_t step, const StepResult& result) {
  count(step, result);
  job_.console.show(totals_.progress, result.skipped ? kNone : result.loss);

  const int64_t done = step + 1;
  const bool last = done == steps_.total_steps;
  const bool epoch_ends = steps_.ends_epoch(step) || last;
  const auto is_due = [done](int64_t interval) { return interval > 0 && done % interval == 0; };

  if ((config_.logging_strategy == "steps" && is_due(logging_steps_)) ||
      (config_.logging_strategy == "epoch" && epoch_ends) ||
      (config_.logging_first_step && done == 1)) {
    log_step(result);
  }
  const bool evaluates = (config_.eval_strategy == "steps" && (is_due(eval_steps_) || last)) ||
                         (config_.eval_strategy == "epoch" && epoch_ends);
  totals_.evaluation_due = evaluates && !job_.eval_examples.empty();
  bool stops = result.stops;
  if (totals_.evaluation_due && !stops) stops = !evaluate_now();

  const bool saves = (config_.save_strategy == "steps" && is_due(save_steps_)) ||
                     (config_.save_strategy == "epoch" && epoch_ends);
  const bool catches_up = checkpoint_owed_ && !saves && is_due(logging_steps_) && has_room_again();
  if (saves || catches_up) save_checkpoint();
  return stops && (!last || ends_with_evaluation());
}

bool Trainer::evaluate_now() {
  const Progress& progress = totals_.progress;
  job_.heartbeat.stands_at(progress.step,
                           fmt::format("the evaluation after step {}", progress.step));
  totals_.evaluation_due = true;
  const std::optional<EvaluationResult> result = evaluate(
      job_.objective, context_, job_.eval_examples, [&] { return job_.host.told_to_stop(); });
  if (!result) return false;
  totals_.evaluation_due = false;
  totals_.last_evaluation = *result;
  totals_.last_evaluated_step = progress.step;
  all_or_none(world_, [&] {
    if (!is_main()) return;
    job_.log.add_evaluation(progress, totals_.last_evaluation);
    job_.console.say(console_line(job_.log.history().back()));
  });
  return true;
}

bool Trainer::evaluates_at_end() const {
  return (config_.do_eval || config_.eval_strategy != "no") && !job_.eval_examples.empty();
}

bool Trainer::ends_with_evaluation() const {
  return evaluates_at_end() && totals_.last_evaluated_step != totals_.progress.step;
}

bool Trainer::is_divided() const {
  return job_.sharded != nullptr && !job_.sharded->all_are_here();
}

double Trainer::mean_loss() const {
  return totals_.loss_in_all / static_cast<double>(std::max<int64_t>(1, totals_.steps_with_loss));
}

RunEnd Trainer::finish() {
  const std::string memory = job_.memory.end(world_);  // of training, not of saving
  if (ends_with_evaluation() && !evaluate_now()) return stop();
  const Progress& progress = totals_.progress;
  const TrainingResult result{
      .loss = mean_loss(),
      .seconds = progress.elapsed_seconds,
      .num_samples = static_cast<double>(totals_.num_samples),
      .total_flos = 6.0 * static_cast<double>(progress.num_computed_tokens) *
                    static_cast<double>(num_parameters_without_embeddings(
                        job_.saver.model().all, job_.saver.model().config.spec))};
  job_.heartbeat.stands_at(progress.step, "the saving of the model");
  const SentBytes sent{job_.traffic.report(world_), job_.expert_traffic.report(world_)};
  all_or_none(world_, [&] {
    if (!is_main()) return;
    job_.log.add_end(progress, result);
    job_.console.say(console_line(job_.log.history().back()));
  });
  if (!save_model() || !save_reports(result, sent)) return RunEnd::kInterrupted;
  if (!is_main()) return RunEnd::kDone;
  if (config_.plot_loss) {
    try {
      plot_curves(job_.log, record_in_);
    } catch (const UserError& error) {
      job_.console.say(fmt::format("warning: {}; the picture is left out.", error.what()));
    }
  }
  for (const std::string& table : {table_of(sent.attention), table_of(sent.experts)}) {
    if (!table.empty()) job_.console.say(table);
  }
  job_.console.say(memory);
  return RunEnd::kDone;
}

bool Trainer::save_model() {
  saved_in_ = job_.patient_saver.save({.name = "the model",
                                       .num_bytes = disk_need(disk()).model,
                                       .kept = job_.checkpoints.last_text()},
                                      output_folders(config_), [&](const std::string& folder) {
                                        if (is_divided()) {
                                          return job_.saver.save_final_together(
                                              folder, *job_.sharded, world_, job_.notices);
                                        }
                                        all_or_none_patiently(world_, job_.notices, [&] {
                                          if (is_main())
                                            job_.saver.save_final(folder, model_.parameters());
                                        });
                                      });
  return !saved_in_.empty();
}

bool Trainer::save_reports(const TrainingResult& result, const SentBytes& sent) {
  const auto write_reports = [&](const std::string& folder) {
    all_or_none_patiently(world_, job_.notices, [&] {
      if (!is_main()) return;
      const UninterruptedScope uninterrupted;
      job_.log.move_to(folder);  // also where it is there: what is said to be saved is on the disk
      job_.log.write_state(folder, totals_.progress);
      job_.log.write_train_results(totals_.progress, result);
      if (!table_of(sent.attention).empty()) write_report(folder, sent.attention);
      if (!table_of(sent.experts).empty()) write_report(folder, sent.experts);
      job_.memory.write(folder);
      if (evaluates_at_end())
        job_.log.write_eval_results(totals_.progress, totals_.last_evaluation);
    });
  };
  const std::string where = "the model is in " + saved_in_;
  std::vector<std::string> folders = output_folders(config_);
  std::erase(folders, saved_in_);
  folders.insert(folders.begin(), saved_in_);
  try {
    record_in_ = job_.patient_saver.save(
        {.name = "the record of the run (logs and results)",
         .num_bytes = kReportBytes + kEntryBytes * std::ssize(job_.log.history()),
         .kept = where},
        folders, write_reports);
    return !record_in_.empty();
  } catch (const std::exception& error) {
    if (is_main() && is_agreed(world_, error)) {
      job_.console.say(fmt::format("warning: {}; what tells of the run cannot be written.", where));
    }
    throw;
  }
}

}  // namespace longspan
