#include "longspan/train/step.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "longspan/config/config.h"
#include "longspan/kernels/dropout.h"
#include "longspan/memory/transfer.h"
#include "longspan/optim/schedule.h"

namespace longspan {
namespace {

at::Tensor fp64(const std::vector<double>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kDouble));
}

std::vector<double> values_of(const ToHost& numbers) {
  const double* data = numbers.here().const_data_ptr<double>();
  return {data, data + numbers.here().numel()};
}

/// Sums over ranks of what their hosts know, back on the host.
std::vector<double> sums_over(const Group& group, const std::vector<double>& values,
                              at::Device device) {
  if (group.size() == 1) return values;
  const at::Tensor sums = sent_to(fp64(values), device);
  group.sum_(sums);
  return values_of(ToHost(sums));
}

}  // namespace

TrainingStep::TrainingStep(const TrainingJob& job)
    : context_(job.context),
      config_(job.context.config),
      mesh_(job.context.mesh),
      world_(job.context.mesh.world),
      model_(job.context.model),
      device_(job.context.device),
      objective_(job.objective),
      source_(job.source),
      host_(job.host),
      traffic_(job.reports.traffic),
      expert_traffic_(job.reports.expert_traffic),
      console_(job.reports.console),
      plan_(StepPlan::make(source_.num_batches(), config_.gradient_accumulation_steps,
                           config_.num_train_epochs, config_.max_steps)),
      num_warmup_steps_(
          warmup_steps_of(config_.warmup_ratio, config_.warmup_steps, plan_.total_steps)),
      update_(model_.parameters(), job.saving.saver.model().specs, job.sharded, world_, config_),
      balance_(ExpertBalance::make(job.context, job.saving.saver.model().config)) {}

std::vector<std::string> TrainingStep::names_of_averages() const {
  std::vector<std::string> names = objective_.averages();
  if (!balance_) return names;
  for (const std::string& name : balance_->averages()) names.push_back(name);
  return names;
}

void TrainingStep::look_at(const std::vector<Row>& rows, int64_t step) {
  objective_.begin();
  if (objective_.looks_ahead()) {
    for (const Row& row : rows) objective_.look(row);
    objective_.looked();
  }
  if (!balance_) return;
  balance_->begin();
  if (!balance_->looks_ahead()) return;
  for (size_t i = 0; i < rows.size(); ++i) {
    model_.set_dropout_seed(dropout_seed(step, i));
    balance_->look(rows[i]);
    model_.set_dropout_seed(std::nullopt);
  }
  balance_->looked();
}

StepResult TrainingStep::run(int64_t step, int64_t num_skipped) {
  const std::vector<Row> rows = rows_of(plan_.place(step));  // the same on all SP members

  // The loss is a mean over the whole global batch. Its only denominator is known before anything
  // is computed.
  std::vector<double> counts(4, 0.0);
  for (const Row& row : rows) {
    counts[0] += objective_.weight(row);
    counts[1] += static_cast<double>(row.num_tokens());
    counts[2] += static_cast<double>(row.examples.size());
    counts[3] += static_cast<double>(row.num_computed_tokens());
  }
  counts = sums_over(mesh_.data_hosts, counts, at::kCPU);
  StepResult result;
  result.learning_rate =
      config_.learning_rate *
      schedule_factor(config_.lr_scheduler_type, step, num_warmup_steps_, plan_.total_steps);
  const double total_weight = counts[0];
  result.num_tokens = static_cast<int64_t>(counts[1]);
  result.num_samples = static_cast<int64_t>(counts[2]);
  result.num_computed_tokens = static_cast<int64_t>(counts[3]);

  const auto averages_before = averages_.sums();
  look_at(rows, step);
  const bool leads = mesh_.sequence.rank() == 0;
  Averages others;
  std::vector<at::Tensor> contributions;
  for (size_t i = 0; i < rows.size(); ++i) {
    traffic_.begin_row();
    expert_traffic_.begin_row();
    model_.set_dropout_seed(dropout_seed(step, i));
    if (balance_) balance_->open();
    const at::Tensor contribution =
        objective_.loss(rows[i], i, total_weight, leads ? averages_ : others);
    model_.set_dropout_seed(std::nullopt);
    if (balance_) {
      balance_->close();
      balance_->count_step();
    }
    traffic_.end_forward(rows[i].local.packing);
    expert_traffic_.end_forward();
    contribution.backward();
    update_.end_backward();
    traffic_.end_backward();
    expert_traffic_.end_backward();
    contributions.push_back(contribution.detach());
    if (world_.size() == 1 && host_.requested()) break;
  }
  // A rank without a row takes part in what the others count.
  if (balance_ && rows.empty()) balance_->count_step();
  // A signal that one rank has seen counts for all: they leave at the same step.
  at::Tensor own_sums = sent_to(
      fp64({0.0, host_.requested() ? 1.0 : 0.0, host_.told_to_stop() ? 1.0 : 0.0}), device_);
  const at::Tensor loss = own_sums.select(0, 0);
  if (const at::Tensor of_experts = balance_ ? balance_->loss() : at::Tensor();
      of_experts.defined()) {
    loss.add_(of_experts);
  }
  if (leads || !objective_.replicated()) {
    for (const at::Tensor& contribution : contributions) {
      loss.add_(contribution.reshape({}).to(at::kDouble));
    }
  }
  world_.sum_(own_sums);
  const ToHost arriving(own_sums);
  // Before the host waits, so that these numbers are there as well.
  if (balance_) balance_->add_to(averages_);
  // The host waits for a GPU once in a step: for this norm, with which the sums are there too.
  std::optional<double> grad_norm;
  if (!device_.is_cpu()) grad_norm = update_.sum_gradients();
  const std::vector<double> sums = values_of(arriving);
  result.loss = sums[0];
  result.interrupted = sums[1] > 0.0;
  result.stops = sums[2] > 0.0;
  if (result.interrupted) return result;
  if (std::isfinite(result.loss)) {
    result.grad_norm = grad_norm ? *grad_norm : update_.sum_gradients();
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    averages_.set(averages_before);
    std::vector<double> own_losses;
    for (size_t i = 0; i < contributions.size(); ++i) {
      own_losses.push_back(contributions[i].item<double>() * total_weight /
                           std::max(1.0, objective_.weight(rows[i])));
    }
    if (!objective_.replicated()) own_losses = sums_over(mesh_.sequence, own_losses, device_);
    leave_out(result, step, rows, own_losses, num_skipped);
    update_.drop_gradients();
    return result;
  }
  if (config_.max_grad_norm > 0) update_.clip(result.grad_norm, config_.max_grad_norm);
  update_.step(result.learning_rate);
  skipped_in_a_row_ = 0;
  return result;
}

std::vector<Row> TrainingStep::rows_of(const StepPlace& place) {
  std::vector<Row> rows;
  for (int64_t batch = place.begin_batch; batch < place.end_batch; ++batch) {
    const DrawnExamples drawn = source_.next(place.epoch, batch);
    // The last micro-batch may leave nothing for this data-parallel group: it contributes zero.
    if (drawn.examples.empty() && !context_.idle_rows) continue;
    rows.push_back(make_row(drawn, objective_.documents(), context_.attention, device_));
  }
  return rows;
}

uint64_t TrainingStep::dropout_seed(int64_t step, size_t row_number) const {
  uint64_t seed = static_cast<uint64_t>(config_.seed);
  for (const uint64_t number : {static_cast<uint64_t>(step), static_cast<uint64_t>(row_number),
                                static_cast<uint64_t>(mesh_.data.rank())}) {
    seed = mix_seed(seed, number);
  }
  return seed;
}

}  // namespace longspan
