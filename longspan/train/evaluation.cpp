#include "longspan/train/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "longspan/data/loader.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two times that the ranks ask each other whether to stop: short beside the notice that
/// clusters give, long beside what asking costs.
constexpr double kSecondsBetweenQuestions = 3.0;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

std::optional<EvaluationResult> evaluate(Stage& stage, const StageContext& context,
                                         const std::vector<Example>& examples,
                                         const std::function<bool()>& stops) {
  const at::NoGradGuard no_grad;
  const auto start = Clock::now();
  const Mesh& mesh = context.mesh;
  const Loader loader(static_cast<int64_t>(examples.size()),
                      context.config.per_device_eval_batch_size, mesh.data.rank(), mesh.data.size(),
                      /*shuffle=*/false, /*seed=*/0);
  const bool leads = mesh.sequence.rank() == 0;
  double loss_sum = 0.0, weight_sum = 0.0;
  Averages averages, others;
  // All rows at once, as those of one step: estimates are over all of the set.
  std::vector<Row> rows;
  for (int64_t i = 0; i < loader.num_batches(); ++i) {
    std::vector<const Example*> chosen;
    for (const int64_t index : loader.rows(/*epoch=*/0, i)) chosen.push_back(&examples[index]);
    if (chosen.empty() && !context.idle_rows) continue;
    rows.push_back(make_row(chosen, stage.documents(), context.attention, context.device));
  }
  stage.begin(rows);
  int64_t next_question = 1;  // after so many rows; the same on all ranks
  for (int64_t i = 0; i < loader.num_batches(); ++i) {
    if (i == next_question) {
      at::Tensor answers = at::zeros({2}, at::kDouble);
      answers[0].fill_(stops() ? 1.0 : 0.0);
      answers[1].fill_(seconds_since(start) / static_cast<double>(i));
      answers = answers.to(context.device);
      mesh.world.sum_(answers);
      if (answers[0].item<double>() > 0.0) return std::nullopt;
      const double seconds_a_row = answers[1].item<double>() / mesh.world.size();
      next_question += static_cast<int64_t>(
          std::clamp(kSecondsBetweenQuestions / std::max(1e-6, seconds_a_row), 1.0, 1e6));
    }
    if (i >= std::ssize(rows)) continue;  // the last batch may leave nothing for this group
    const double loss = stage.loss(rows[i], i, 1.0, leads ? averages : others).item<double>();
    if (leads || !stage.replicated()) loss_sum += loss;
    // Every member of a sequence group holds the whole row: its labels count once.
    if (leads) weight_sum += stage.weight(rows[i]);
  }
  at::Tensor sums = at::zeros({2}, at::kDouble);
  sums[0].fill_(loss_sum);
  sums[1].fill_(weight_sum);
  sums = sums.to(context.device);
  mesh.world.sum_(sums);
  EvaluationResult result;
  result.loss = sums[0].item<double>() / std::max(1.0, sums[1].item<double>());
  result.means = stage.completed(averages.means(mesh.world, stage.averages(), context.device));
  result.seconds = seconds_since(start);
  result.num_samples = static_cast<int64_t>(examples.size());
  result.num_batches = loader.num_batches();
  return result;
}

}  // namespace longspan
