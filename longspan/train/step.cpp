#include "longspan/train/step.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "longspan/memory/transfer.h"
#include "longspan/settings/choices.h"

namespace longspan {
namespace {

at::Tensor fp64(const std::vector<double>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kDouble));
}

std::vector<double> values_of(const ToHost& numbers) {
  const double* data = numbers.here().const_data_ptr<double>();
  return {data, data + numbers.here().numel()};
}

/// Sums values of the hosts over ranks; the result is on the host.
std::vector<double> sums_over(const Group& group, const std::vector<double>& values,
                              at::Device device) {
  if (group.size() == 1) return values;
  const at::Tensor sums = sent_to(fp64(values), device);
  group.sum_(sums);
  return values_of(ToHost(sums));
}

}  // namespace

TrainingStep::TrainingStep(const OptimizationSettings& config, const StepSchedule& schedule,
                           RunModel& model, ExampleSource& source, RunReports& reports,
                           const Host& host)
    : schedule_(schedule),
      context_(model.context()),
      objective_(model.objective()),
      update_(model.update()),
      source_(source),
      host_(host),
      max_grad_norm_(config.max_grad_norm),
      balance_(ExpertBalance::make(config, context_, model.config())),
      pass_(context_, objective_, balance_.get(), update_, reports.traffic, config.seed),
      nonfinite_(on_nonfinite_of(config), context_.mesh, update_, reports.console) {}

NamedMeans TrainingStep::means() {
  std::vector<std::string> names = objective_.averages();
  if (balance_) {
    for (const std::string& name : balance_->averages()) names.push_back(name);
  }
  return objective_.completed(averages_.means(context_.mesh.world, names, context_.device));
}

StepResult TrainingStep::run(int64_t step, int64_t num_skipped) {
  const std::vector<Row> rows = rows_of(schedule_.plan().place(step));  // same on all SP members
  StepResult result;
  result.learning_rate = schedule_.learning_rate(step);
  // The loss is a mean over the whole global batch. Its only denominator is known before any
  // computation.
  const double total_weight = count(rows, result);
  const auto averages_before = averages_.sums();
  const std::vector<at::Tensor> contributions = train_on(rows, step, total_weight);
  sum_up(contributions, result);
  if (result.interrupted) return result;
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    averages_.set(averages_before);
    const std::vector<double> losses = own_losses(rows, contributions, total_weight);
    nonfinite_.leave_out({.step = step,
                          .loss = result.loss,
                          .grad_norm = result.grad_norm,
                          .learning_rate = result.learning_rate,
                          .rows = rows,
                          .own_losses = losses},
                         num_skipped);
    result.skipped = true;
    update_.drop_gradients();
    return result;
  }
  if (max_grad_norm_ > 0) update_.clip(result.grad_norm, max_grad_norm_);
  update_.step(result.learning_rate);
  nonfinite_.end_series();
  return result;
}

std::vector<Row> TrainingStep::rows_of(const StepPlace& place) {
  std::vector<Row> rows;
  for (int64_t batch = place.begin_batch; batch < place.end_batch; ++batch) {
    const DrawnExamples drawn = source_.next(place.epoch, batch);
    // In the last micro-batch, this data-parallel group may have no rows: it contributes zero.
    if (drawn.examples.empty() && !context_.idle_rows) continue;
    rows.push_back(make_row(drawn, objective_.documents(), context_.attention, context_.device));
    context_.model.check_ids(rows.back().whole);
  }
  return rows;
}

double TrainingStep::count(const std::vector<Row>& rows, StepResult& result) const {
  std::vector<double> counts(4, 0.0);
  for (const Row& row : rows) {
    counts[0] += objective_.weight(row);
    counts[1] += static_cast<double>(row.num_tokens());
    counts[2] += static_cast<double>(row.examples.size());
    counts[3] += static_cast<double>(row.num_computed_tokens());
  }
  counts = sums_over(context_.mesh.data_hosts, counts, at::kCPU);
  result.num_tokens = static_cast<int64_t>(counts[1]);
  result.num_samples = static_cast<int64_t>(counts[2]);
  result.num_computed_tokens = static_cast<int64_t>(counts[3]);
  return counts[0];
}

std::vector<at::Tensor> TrainingStep::train_on(const std::vector<Row>& rows, int64_t step,
                                               double total_weight) {
  pass_.look_at(rows, step);
  // Values that all members of a sequence group know are counted once.
  Averages others;
  Averages& averages = context_.mesh.sequence.rank() == 0 ? averages_ : others;
  std::vector<at::Tensor> contributions;
  for (size_t i = 0; i < rows.size(); ++i) {
    contributions.push_back(pass_.run(rows[i], i, step, total_weight, averages));
    if (context_.mesh.world.size() == 1 && host_.requested()) break;
  }
  // A rank without rows takes part in the others' count.
  if (balance_ && rows.empty()) balance_->count_step();
  return contributions;
}

void TrainingStep::sum_up(const std::vector<at::Tensor>& contributions, StepResult& result) {
  // A signal to one rank counts for all, so that they leave at the same step.
  const at::Tensor own_sums =
      sent_to(fp64({0.0, host_.requested() ? 1.0 : 0.0, host_.told_to_stop() ? 1.0 : 0.0}),
              context_.device);
  const at::Tensor loss = own_sums.select(0, 0);
  if (const at::Tensor of_experts = balance_ ? balance_->loss() : at::Tensor();
      of_experts.defined()) {
    loss.add_(of_experts);
  }
  if (context_.mesh.sequence.rank() == 0 || !objective_.replicated()) {
    for (const at::Tensor& contribution : contributions) {
      loss.add_(contribution.reshape({}).to(at::kDouble));
    }
  }
  context_.mesh.world.sum_(own_sums);
  const ToHost arriving(own_sums);
  // Before the host waits, so that these numbers have arrived as well.
  if (balance_) balance_->add_to(averages_);
  // The host waits for a GPU once per step: for this norm; the sums have arrived by then.
  std::optional<double> grad_norm;
  if (!context_.device.is_cpu()) grad_norm = update_.sum_gradients();
  const std::vector<double> sums = values_of(arriving);
  result.loss = sums[0];
  result.interrupted = sums[1] > 0.0;
  result.stops = sums[2] > 0.0;
  if (result.interrupted || !std::isfinite(result.loss)) return;
  result.grad_norm = grad_norm ? *grad_norm : update_.sum_gradients();
}

std::vector<double> TrainingStep::own_losses(const std::vector<Row>& rows,
                                             const std::vector<at::Tensor>& contributions,
                                             double total_weight) const {
  std::vector<double> losses;
  for (size_t i = 0; i < contributions.size(); ++i) {
    losses.push_back(contributions[i].item<double>() * total_weight /
                     std::max(1.0, objective_.weight(rows[i])));
  }
  return objective_.replicated() ? losses
                                 : sums_over(context_.mesh.sequence, losses, context_.device);
}

}  // namespace longspan
