#include "longspan/train/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

#include "longspan/data/loader.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

/// How often the ranks ask each other whether to stop: short beside the notice that clusters give,
/// long beside the cost of asking.
constexpr double kSecondsBetweenQuestions = 0.5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Asks all ranks, from time to time in a pass over rows, whether one of them is told to stop.
class StopQuestion {
 public:
  StopQuestion(const ObjectiveContext& context, const std::function<bool()>& stops)
      : context_(context), stops_(stops) {}

  /// `done`: rows so far, the same on all ranks. Collective over the world.
  bool answer(int64_t done) {
    if (done != next_) return false;
    at::Tensor answers = at::zeros({2}, at::kDouble);
    answers[0].fill_(stops_() ? 1.0 : 0.0);
    answers[1].fill_(seconds_since(start_) / static_cast<double>(done));
    answers = answers.to(context_.device);
    context_.mesh.world.sum_(answers);
    const double seconds_a_row = answers[1].item<double>() / context_.mesh.world.size();
    next_ += static_cast<int64_t>(
        std::clamp(kSecondsBetweenQuestions / std::max(1e-6, seconds_a_row), 1.0, 1e6));
    return answers[0].item<double>() > 0.0;
  }

 private:
  const ObjectiveContext& context_;
  const std::function<bool()>& stops_;
  Clock::time_point start_ = Clock::now();
  int64_t next_ = 1;
};

}  // namespace

std::optional<EvaluationResult> evaluate(Objective& objective, const ObjectiveContext& context,
                                         const ExampleSet& examples, int64_t batch_size,
                                         const std::function<bool()>& stops) {
  const at::NoGradGuard no_grad;
  const auto start = Clock::now();
  const Mesh& mesh = context.mesh;
  const Loader loader(examples.size(), batch_size, mesh.data.rank(), mesh.data.size(),
                      /*shuffle=*/false, /*seed=*/0);
  const bool leads = mesh.sequence.rank() == 0;
  double loss_sum = 0.0, weight_sum = 0.0;
  Averages averages, others;
  // Makes one row at a time: the set may be large, and a run that is told to stop has little time.
  // False: told to stop.
  const auto for_each_row = [&](const std::function<void(const Row&, size_t)>& use) {
    StopQuestion question(context, stops);
    size_t number = 0;
    for (int64_t i = 0; i < loader.num_batches(); ++i) {
      if (question.answer(i)) return false;
      const std::vector<int64_t> places = loader.rows(/*epoch=*/0, i);
      // The last batch may leave nothing for this group.
      if (places.empty() && !context.idle_rows) continue;
      use(make_row(draw(examples, places), objective.documents(), context.attention,
                   context.device),
          number++);
    }
    return true;
  };
  // Treats the set as the rows of one step, so that estimates are over all of it.
  objective.begin();
  if (objective.looks_ahead()) {
    if (!for_each_row([&](const Row& row, size_t) { objective.look(row); })) return std::nullopt;
    objective.looked();
  }
  const bool done = for_each_row([&](const Row& row, size_t number) {
    const double loss = objective.loss(row, number, 1.0, leads ? averages : others).item<double>();
    if (leads || !objective.replicated()) loss_sum += loss;
    // Every member of a sequence group holds the whole row: its labels count once.
    if (leads) weight_sum += objective.weight(row);
  });
  if (!done) return std::nullopt;
  at::Tensor sums = at::zeros({2}, at::kDouble);
  sums[0].fill_(loss_sum);
  sums[1].fill_(weight_sum);
  sums = sums.to(context.device);
  mesh.world.sum_(sums);
  EvaluationResult result;
  result.loss = sums[0].item<double>() / std::max(1.0, sums[1].item<double>());
  result.means =
      objective.completed(averages.means(mesh.world, objective.averages(), context.device));
  result.seconds = seconds_since(start);
  result.num_samples = examples.size();
  result.num_batches = loader.num_batches();
  return result;
}

}  // namespace longspan
