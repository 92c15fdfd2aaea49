#include "longspan/train/trainer.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>

#include "longspan/comm/communication_error.h"
#include "longspan/config/user_error.h"
#include "longspan/models/dropout.h"
#include "longspan/optim/schedule.h"
#include "longspan/train/agreement.h"
#include "longspan/train/curves.h"
#include "longspan/train/evaluation.h"
#include "longspan/train/sharded_saving.h"

namespace longspan {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t num_trained_parameters_without_embeddings(const Decoder& model) {
  int64_t total = 0;
  for (const NamedTensor& parameter : model.parameters()) {
    if (parameter.name.find("embed_tokens") == std::string::npos) total += parameter.tensor.numel();
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

Trainer::Trainer(const TrainingJob& job, ModelSaver& saver, TrainingLog& log, Console& console)
    : job_(job),
      saver_(saver),
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
      update_(job.context.model.parameters(), job.sharded, job.context.mesh.world,
              job.context.config) {
  progress_.total_steps = steps_.total_steps;
}

StepResult Trainer::step(int64_t step) {
  const Mesh& mesh = job_.context.mesh;
  Decoder& model = job_.context.model;
  const std::vector<Row> rows = rows_of(steps_.place(step));  // the same on all SP members

  // What the loss is a mean over, of the whole global batch, before anything is computed: the only
  // denominator.
  std::vector<double> counts(3, 0.0);
  for (const Row& row : rows) {
    counts[0] += job_.stage.weight(row);
    counts[1] += static_cast<double>(row.whole.tokens_T.numel());
    counts[2] += static_cast<double>(row.examples.size());
  }
  counts = sums_over(mesh.data, counts, job_.context.device);
  StepResult result;
  const double total_weight = counts[0];
  result.num_tokens = static_cast<int64_t>(counts[1]);
  result.num_samples = static_cast<int64_t>(counts[2]);

  job_.stage.begin(rows);
  const bool leads = mesh.sequence.rank() == 0;
  Averages others;
  std::vector<at::Tensor> contributions;
  for (size_t i = 0; i < rows.size(); ++i) {
    job_.traffic.begin_row();
    model.set_dropout_seed(dropout_seed(step, i));
    const at::Tensor contribution =
        job_.stage.loss(rows[i], i, total_weight, leads ? averages_ : others);
    model.set_dropout_seed(std::nullopt);
    job_.traffic.end_forward(rows[i].local.packing);
    contribution.backward();
    update_.end_backward();
    job_.traffic.end_backward();
    contributions.push_back(contribution.detach());
    if (mesh.world.size() == 1 && job_.interrupts.requested()) break;
  }
  double loss = 0.0;
  if (leads || !job_.stage.replicated()) {
    for (const at::Tensor& contribution : contributions) loss += contribution.item<double>();
  }

  // An interrupt that one rank has seen is everyone's: all leave at the same step.
  const std::vector<double> sums =
      sums_over(mesh.world, {loss, job_.interrupts.requested() ? 1.0 : 0.0}, job_.context.device);
  result.loss = sums[0];
  result.interrupted = sums[1] > 0.0;
  if (result.interrupted) return result;
  require_finite(result, step, contributions);

  result.grad_norm = update_.sum_gradients();
  require_finite(result, step, contributions);
  const Config& config = job_.context.config;
  if (config.max_grad_norm > 0) update_.clip(result.grad_norm, config.max_grad_norm);
  result.learning_rate =
      config.learning_rate *
      schedule_factor(config.lr_scheduler_type, step, num_warmup_steps_, steps_.total_steps);
  update_.step(result.learning_rate);
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
    rows.push_back(
        make_row(examples, job_.stage.documents(), job_.context.attention, job_.context.device));
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

void Trainer::require_finite(const StepResult& result, int64_t step,
                             const std::vector<at::Tensor>& contributions) const {
  if (std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return;
  // Which rows: each rank knows where its own contribution went wrong, rank 0 says it.
  const StepPlace place = steps_.place(step);
  std::string mine;
  size_t contribution = 0;
  for (int64_t batch = place.begin_batch; batch < place.end_batch; ++batch) {
    const std::vector<int64_t> indices = loader_.rows(place.epoch, batch);
    if (indices.empty() && !job_.context.idle_rows) continue;
    if (!std::isfinite(contributions[contribution++].item<double>())) {
      mine += fmt::format("{} ", fmt::join(indices, " "));
    }
  }
  std::istringstream numbers(
      fmt::format("{}", fmt::join(job_.context.mesh.world.gather_text(mine), " ")));
  const std::set<int64_t> rows{std::istream_iterator<int64_t>(numbers), {}};
  all_or_none(job_.context.mesh.world, [&] {
    const std::string where =
        rows.empty() ? ""
                     : fmt::format(" It comes from row {} of the training set (counted from 0).",
                                   fmt::join(rows, ", "));
    throw UserError(fmt::format(
        "The {} of step {} is {}.{} Nothing more was trained or saved. Lower learning_rate, set "
        "max_grad_norm, or look at the rows and the model's weights.",
        std::isfinite(result.loss) ? "gradient norm" : "loss", step + 1,
        std::isfinite(result.loss) ? result.grad_norm : result.loss, where));
  });
}

bool Trainer::train() {
  const double start = seconds_now();
  double last_loss = 0.0;
  console_.show(progress_, last_loss);
  for (int64_t step = 0; step < steps_.total_steps; ++step) {
    try {
      const StepResult result = this->step(step);
      if (result.interrupted) {
        console_.finish();
        return false;
      }
      progress_.elapsed_seconds = seconds_now() - start;
      after_step(step, result);
    } catch (const CommunicationError& error) {
      throw CommunicationError(fmt::format("Step {}: {}", step + 1, error.what()));
    }
  }
  progress_.elapsed_seconds = seconds_now() - start;
  console_.finish();
  finish();
  return true;
}

void Trainer::after_step(int64_t step, const StepResult& result) {
  progress_.step = step + 1;
  progress_.epoch = steps_.place(step).epochs_done;
  progress_.num_tokens += result.num_tokens;
  samples_in_all_ += result.num_samples;
  loss_in_all_ += result.loss;
  loss_since_log_ += result.loss;
  ++steps_since_log_;
  console_.show(progress_, result.loss);

  const Config& config = job_.context.config;
  const int64_t done = step + 1;
  const bool last = done == steps_.total_steps;
  const auto is_due = [done](int64_t interval) { return interval > 0 && done % interval == 0; };

  if (is_due(config.logging_steps)) {
    const LoggedStep logged{
        .loss = loss_since_log_ / static_cast<double>(steps_since_log_),
        .grad_norm = result.grad_norm,
        .learning_rate = result.learning_rate,
        .means = job_.stage.completed(
            averages_.means(job_.context.mesh.world, job_.stage.averages(), job_.context.device))};
    averages_.clear();
    loss_since_log_ = 0.0;
    steps_since_log_ = 0;
    all_or_none(job_.context.mesh.world, [&] {
      if (!is_main()) return;
      log_.add_step(progress_, logged);
      console_.say(console_line(log_.history().back()));
    });
  }
  const bool epoch_ends = steps_.ends_epoch(step) || last;
  const bool evaluates = (config.eval_strategy == "steps" &&
                          (is_due(config.eval_steps.value_or(config.logging_steps)) || last)) ||
                         (config.eval_strategy == "epoch" && epoch_ends);
  if (evaluates && !job_.eval_examples.empty()) evaluate_now();

  const bool saves = (config.save_strategy == "steps" && is_due(config.save_steps)) ||
                     (config.save_strategy == "epoch" && epoch_ends);
  if (!saves) return;
  const auto add_files = [&](const std::string& path) { log_.write_state(path, progress_); };
  write_together(done, [&] {
    const std::string folder =
        no_rank_holds_the_model()
            ? saver_.finish_checkpoint(done, add_files)
            : saver_.save_checkpoint(done, job_.context.model.parameters(), add_files);
    console_.say(fmt::format("Saved {}", folder));
  });
}

bool Trainer::no_rank_holds_the_model() const {
  return job_.sharded != nullptr && !job_.sharded->all_are_here();
}

void Trainer::write_together(std::optional<int64_t> step, const std::function<void()>& finish) {
  const Group& world = job_.context.mesh.world;
  std::optional<TemporaryFolder> temporary;
  if (no_rank_holds_the_model()) {
    const std::string folder = saver_.temporary_folder(step);
    all_or_none(world, [&] {
      if (is_main()) temporary.emplace(folder);
    });
    write_sharded_model(folder, saver_.model(), *job_.sharded, world);
  }
  all_or_none(world, [&] {
    if (is_main()) finish();
  });
}

void Trainer::evaluate_now() {
  last_evaluation_ = evaluate(job_.stage, job_.context, job_.eval_examples);
  last_evaluated_step_ = progress_.step;
  all_or_none(job_.context.mesh.world, [&] {
    if (!is_main()) return;
    log_.add_evaluation(progress_, last_evaluation_);
    console_.say(console_line(log_.history().back()));
  });
}

void Trainer::finish() {
  const std::string memory =
      job_.memory.end(job_.context.mesh.world);  // of training, not of saving
  const bool evaluates =
      (job_.context.config.do_eval || job_.context.config.eval_strategy != "no") &&
      !job_.eval_examples.empty();
  if (evaluates && last_evaluated_step_ != progress_.step) evaluate_now();
  const TrainingResult result{
      .loss = loss_in_all_ / static_cast<double>(std::max<int64_t>(1, progress_.step)),
      .seconds = progress_.elapsed_seconds,
      .num_samples = static_cast<double>(samples_in_all_),
      .total_flos =
          6.0 * static_cast<double>(progress_.num_tokens) *
          static_cast<double>(num_trained_parameters_without_embeddings(job_.context.model))};
  const AttentionTraffic::Report sent = job_.traffic.report(job_.context.mesh.world);
  write_together({}, [&] {
    const std::string& folder = job_.context.config.output_dir;
    if (no_rank_holds_the_model()) {
      saver_.finish_final();
    } else {
      saver_.save_final(job_.context.model.parameters());
    }
    const UninterruptedScope uninterrupted;
    log_.add_end(progress_, result);
    console_.say(console_line(log_.history().back()));
    log_.write_state(folder, progress_);
    log_.write_train_results(progress_, result);
    if (const std::string table = table_of(sent); !table.empty()) {
      write_report(folder, sent);
      console_.say(table);
    }
    job_.memory.write(folder);
    console_.say(memory);
    if (evaluates) log_.write_eval_results(progress_, last_evaluation_);
    if (job_.context.config.plot_loss) plot_curves(log_, folder);
  });
}

}  // namespace longspan
