#include "longspan/train/trainer.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "longspan/comm/communication_error.h"
#include "longspan/config/user_error.h"
#include "longspan/kernels/dropout.h"
#include "longspan/optim/schedule.h"
#include "longspan/train/agreement.h"
#include "longspan/train/curves.h"
#include "longspan/train/evaluation.h"
#include "longspan/train/output_folders.h"

namespace longspan {
namespace {

/// About the bytes of a run's reports: of all files but the log, and of a log line in both files
/// that have it.
constexpr int64_t kReportBytes = 64 << 10, kEntryBytes = 2 << 10;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t num_parameters_without_embeddings(const Decoder& model, const ParameterTable& specs) {
  int64_t total = 0;
  for (const auto& [name, tensor] : model.parameters()) {
    if (specs.of(name).role != ParameterRole::kEmbedding) total += tensor.numel();
  }
  return total;
}

/// Sums over ranks, back on the host.
std::vector<double> sums_over(const Group& group, const std::vector<double>& values,
                              at::Device device) {
  at::Tensor sums = at::tensor(values, at::TensorOptions().dtype(at::kDouble)).to(device);
  group.sum_(sums);
  sums = sums.cpu();
  const double* data = sums.const_data_ptr<double>();
  return {data, data + values.size()};
}

}  // namespace

Trainer::Trainer(const TrainingJob& job, const ModelSaver& saver, Checkpoints& checkpoints,
                 TrainingLog& log, Console& console)
    : job_(job),
      saver_(saver),
      checkpoints_(checkpoints),
      log_(log),
      console_(console),
      loader_(static_cast<int64_t>(job.train_examples.size()),
              job.context.config.per_device_train_batch_size, job.context.mesh.data.rank(),
              job.context.mesh.data.size(), !job.context.config.disable_shuffling,
              job.context.config.seed),
      steps_(StepPlan::make(loader_.num_batches(), job.context.config.gradient_accumulation_steps,
                            job.context.config.num_train_epochs, job.context.config.max_steps)),
      num_warmup_steps_(warmup_steps_of(job.context.config.warmup_ratio,
                                        job.context.config.warmup_steps, steps_.total_steps)),
      logging_steps_(steps_of(job.context.config.logging_steps, steps_.total_steps)),
      eval_steps_(steps_of(job.context.config.eval_steps.value_or(job.context.config.logging_steps),
                           steps_.total_steps)),
      save_steps_(steps_of(job.context.config.save_steps, steps_.total_steps)),
      update_(job.context.model.parameters(), saver.model().specs, job.sharded,
              job.context.mesh.world, job.context.config),
      last_grad_norm_(kNone) {
  totals_.progress.total_steps = steps_.total_steps;
  log_.set_steps(logging_steps_, eval_steps_, save_steps_);
}

StepResult Trainer::step(int64_t step) {
  const Mesh& mesh = job_.context.mesh;
  const at::Device device = job_.context.device;
  Decoder& model = job_.context.model;
  const std::vector<Row> rows = rows_of(steps_.place(step));  // the same on all SP members

  // The loss is a mean over the whole global batch. Its only denominator is known before anything
  // is computed.
  std::vector<double> counts(4, 0.0);
  for (const Row& row : rows) {
    counts[0] += job_.objective.weight(row);
    counts[1] += static_cast<double>(row.num_tokens());
    counts[2] += static_cast<double>(row.examples.size());
    counts[3] += static_cast<double>(row.num_computed_tokens());
  }
  counts = sums_over(mesh.data, counts, device);
  StepResult result;
  result.learning_rate = job_.context.config.learning_rate *
                         schedule_factor(job_.context.config.lr_scheduler_type, step,
                                         num_warmup_steps_, steps_.total_steps);
  const double total_weight = counts[0];
  result.num_tokens = static_cast<int64_t>(counts[1]);
  result.num_samples = static_cast<int64_t>(counts[2]);
  result.num_computed_tokens = static_cast<int64_t>(counts[3]);

  const auto averages_before = averages_.sums();
  job_.objective.begin();
  if (job_.objective.looks_ahead()) {
    for (const Row& row : rows) job_.objective.look(row);
    job_.objective.looked();
  }
  const bool leads = mesh.sequence.rank() == 0;
  Averages others;
  std::vector<at::Tensor> contributions;
  for (size_t i = 0; i < rows.size(); ++i) {
    job_.traffic.begin_row();
    model.set_dropout_seed(dropout_seed(step, i));
    const at::Tensor contribution =
        job_.objective.loss(rows[i], i, total_weight, leads ? averages_ : others);
    model.set_dropout_seed(std::nullopt);
    job_.traffic.end_forward(rows[i].local.packing);
    contribution.backward();
    update_.end_backward();
    job_.traffic.end_backward();
    contributions.push_back(contribution.detach());
    if (mesh.world.size() == 1 && job_.interrupts.requested()) break;
  }
  double loss = 0.0;
  if (leads || !job_.objective.replicated()) {
    for (const at::Tensor& contribution : contributions) loss += contribution.item<double>();
  }

  // A signal that one rank has seen counts for all: they leave at the same step.
  const std::vector<double> sums = sums_over(mesh.world,
                                             {loss, job_.interrupts.requested() ? 1.0 : 0.0,
                                              job_.interrupts.stop_signal() != 0 ? 1.0 : 0.0},
                                             device);
  result.loss = sums[0];
  result.interrupted = sums[1] > 0.0;
  result.stops = sums[2] > 0.0;
  if (result.interrupted) return result;
  if (std::isfinite(result.loss)) result.grad_norm = update_.sum_gradients();
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    averages_.set(averages_before);
    std::vector<double> own_losses;
    for (size_t i = 0; i < contributions.size(); ++i) {
      own_losses.push_back(contributions[i].item<double>() * total_weight /
                           std::max(1.0, job_.objective.weight(rows[i])));
    }
    if (!job_.objective.replicated()) own_losses = sums_over(mesh.sequence, own_losses, device);
    leave_out(result, step, own_losses);
    update_.drop_gradients();
    return result;
  }
  const Config& config = job_.context.config;
  if (config.max_grad_norm > 0) update_.clip(result.grad_norm, config.max_grad_norm);
  update_.step(result.learning_rate);
  skipped_in_a_row_ = 0;
  return result;
}

std::vector<Row> Trainer::rows_of(const StepPlace& place) const {
  std::vector<Row> rows;
  for (int64_t batch = place.begin_batch; batch < place.end_batch; ++batch) {
    std::vector<const Example*> examples;
    for (const int64_t index : loader_.rows(place.epoch, batch)) {
      examples.push_back(&job_.train_examples[index]);
    }
    // The last micro-batch may leave nothing for this data-parallel group: it contributes zero.
    if (examples.empty() && !job_.context.idle_rows) continue;
    rows.push_back(make_row(examples, job_.objective.documents(), job_.context.attention,
                            job_.context.device));
  }
  return rows;
}

uint64_t Trainer::dropout_seed(int64_t step, size_t row_number) const {
  uint64_t seed = static_cast<uint64_t>(job_.context.config.seed);
  for (const uint64_t number : {static_cast<uint64_t>(step), static_cast<uint64_t>(row_number),
                                static_cast<uint64_t>(job_.context.mesh.data.rank())}) {
    seed = mix_seed(seed, number);
  }
  return seed;
}

TrainingEnd Trainer::train() {
  const double start = seconds_now() - totals_.progress.elapsed_seconds;
  console_.show(totals_.progress, kNone);
  int64_t step = totals_.progress.step;
  try {
    totals_.evaluation_due = totals_.evaluation_due && !job_.eval_examples.empty();
    if (totals_.evaluation_due && !evaluate_now()) return stop();
    for (; step < steps_.total_steps; ++step) {
      job_.heartbeat.stands_at(step + 1, fmt::format("step {}", step + 1));
      const StepResult result = this->step(step);
      if (result.interrupted) {
        console_.finish();
        return TrainingEnd::kInterrupted;
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

TrainingEnd Trainer::stop() {
  if (last_saved_step_ != totals_.progress.step && !save_last_checkpoint()) {
    return TrainingEnd::kInterrupted;
  }
  console_.finish();
  if (totals_.evaluation_due) {
    console_.say(fmt::format(
        "The evaluation after step {} was left out{}.", totals_.progress.step,
        job_.context.config.save_only_model ? "" : "; it comes first when the run goes on"));
  }
  return TrainingEnd::kStopped;
}

bool Trainer::after_step(int64_t step, const StepResult& result) {
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
  console_.show(progress, result.skipped ? kNone : result.loss);

  const Config& config = job_.context.config;
  const int64_t done = step + 1;
  const bool last = done == steps_.total_steps;
  const auto is_due = [done](int64_t interval) { return interval > 0 && done % interval == 0; };

  const bool epoch_ends = steps_.ends_epoch(step) || last;
  if ((config.logging_strategy == "steps" && is_due(logging_steps_)) ||
      (config.logging_strategy == "epoch" && epoch_ends) ||
      (config.logging_first_step && done == 1)) {
    const LoggedStep logged{
        .loss = totals_.steps_since_log == 0
                    ? kNone
                    : totals_.loss_since_log / static_cast<double>(totals_.steps_since_log),
        .grad_norm = last_grad_norm_,
        .learning_rate = result.learning_rate,
        .means = job_.objective.completed(averages_.means(
            job_.context.mesh.world, job_.objective.averages(), job_.context.device)),
        .num_skipped = totals_.num_skipped};
    averages_.clear();
    last_grad_norm_ = kNone;
    totals_.loss_since_log = 0.0;
    totals_.steps_since_log = 0;
    all_or_none(job_.context.mesh.world, [&] {
      if (!is_main()) return;
      log_.add_step(progress, logged);
      console_.say(console_line(log_.history().back()));
    });
  }
  const bool evaluates = (config.eval_strategy == "steps" && (is_due(eval_steps_) || last)) ||
                         (config.eval_strategy == "epoch" && epoch_ends);
  totals_.evaluation_due = evaluates && !job_.eval_examples.empty();
  bool stops = result.stops;
  if (totals_.evaluation_due && !stops) stops = !evaluate_now();

  const bool saves = (config.save_strategy == "steps" && is_due(save_steps_)) ||
                     (config.save_strategy == "epoch" && epoch_ends);
  const bool catches_up = checkpoint_owed_ && !saves && is_due(logging_steps_) && has_room_again();
  if (saves || catches_up) save_checkpoint();
  return stops && (!last || ends_with_evaluation());
}

bool Trainer::evaluate_now() {
  const Progress& progress = totals_.progress;
  job_.heartbeat.stands_at(progress.step,
                           fmt::format("the evaluation after step {}", progress.step));
  totals_.evaluation_due = true;
  const std::optional<EvaluationResult> result =
      evaluate(job_.objective, job_.context, job_.eval_examples,
               [&] { return job_.interrupts.stop_signal() != 0; });
  if (!result) return false;
  totals_.evaluation_due = false;
  totals_.last_evaluation = *result;
  totals_.last_evaluated_step = progress.step;
  all_or_none(job_.context.mesh.world, [&] {
    if (!is_main()) return;
    log_.add_evaluation(progress, totals_.last_evaluation);
    console_.say(console_line(log_.history().back()));
  });
  return true;
}

bool Trainer::ends_with_evaluation() const {
  return (job_.context.config.do_eval || job_.context.config.eval_strategy != "no") &&
         !job_.eval_examples.empty() && totals_.last_evaluated_step != totals_.progress.step;
}

bool Trainer::is_divided() const {
  return job_.sharded != nullptr && !job_.sharded->all_are_here();
}

TrainingEnd Trainer::finish() {
  const std::string memory =
      job_.memory.end(job_.context.mesh.world);  // of training, not of saving
  const bool evaluates =
      (job_.context.config.do_eval || job_.context.config.eval_strategy != "no") &&
      !job_.eval_examples.empty();
  if (ends_with_evaluation() && !evaluate_now()) return stop();
  const Progress& progress = totals_.progress;
  const TrainingResult result{
      .loss =
          totals_.loss_in_all / static_cast<double>(std::max<int64_t>(1, totals_.steps_with_loss)),
      .seconds = progress.elapsed_seconds,
      .num_samples = static_cast<double>(totals_.num_samples),
      .total_flos = 6.0 * static_cast<double>(progress.num_computed_tokens) *
                    static_cast<double>(num_parameters_without_embeddings(job_.context.model,
                                                                          saver_.model().specs))};
  job_.heartbeat.stands_at(progress.step, "the saving of the model");
  const AttentionTraffic::Report sent = job_.traffic.report(job_.context.mesh.world);
  const Group& world = job_.context.mesh.world;
  all_or_none(world, [&] {
    if (!is_main()) return;
    log_.add_end(progress, result);
    console_.say(console_line(log_.history().back()));
  });
  const std::string table = table_of(sent);
  const auto write_model = [&](const std::string& folder) {
    if (is_divided()) {
      return saver_.save_final_together(folder, *job_.sharded, world, job_.notices);
    }
    all_or_none_patiently(world, job_.notices, [&] {
      if (is_main()) saver_.save_final(folder, job_.context.model.parameters());
    });
  };
  saved_in_ = job_.patient_saver.save(
      {.name = "the model", .num_bytes = disk_need(disk()).model, .kept = checkpoints_.last_text()},
      output_folders(job_.context.config), write_model);
  if (saved_in_.empty()) return TrainingEnd::kInterrupted;
  const auto write_reports = [&](const std::string& folder) {
    all_or_none_patiently(world, job_.notices, [&] {
      if (!is_main()) return;
      const UninterruptedScope uninterrupted;
      log_.move_to(folder);  // also where it is there: what is said to be saved is on the disk
      log_.write_state(folder, progress);
      log_.write_train_results(progress, result);
      if (!table.empty()) write_report(folder, sent);
      job_.memory.write(folder);
      if (evaluates) log_.write_eval_results(progress, totals_.last_evaluation);
    });
  };
  const std::string where = "the model is in " + saved_in_;
  std::string reported;
  try {
    reported = job_.patient_saver.save(
        {.name = "the record of the run (logs and results)",
         .num_bytes = kReportBytes + kEntryBytes * std::ssize(log_.history()),
         .kept = where},
        {saved_in_}, write_reports);
  } catch (const std::exception& error) {
    if (is_main() && is_agreed(world, error)) {
      console_.say(fmt::format("warning: {}; what tells of the run cannot be written.", where));
    }
    throw;
  }
  if (reported.empty()) return TrainingEnd::kInterrupted;
  if (is_main()) {
    if (job_.context.config.plot_loss) {
      try {
        plot_curves(log_, saved_in_);
      } catch (const UserError& error) {
        console_.say(fmt::format("warning: {}; the picture is left out.", error.what()));
      }
    }
    if (!table.empty()) console_.say(table);
    console_.say(memory);
  }
  return TrainingEnd::kDone;
}

}  // namespace longspan
