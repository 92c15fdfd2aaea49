#include "longspan/session/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "longspan/data/loader.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

/// Interval in which the ranks ask each other whether to stop: short compared to a cluster's
/// notice, long compared to the cost of asking.
constexpr double kSecondsBetweenQuestions = 0.5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Sums two numbers over all ranks.
std::pair<double, double> summed(const Mesh& mesh, const at::Tensor& numbers, at::Device device) {
  at::Tensor sums = numbers;
  if (mesh.world.size() > 1) {
    sums = sent_to(numbers, device);
    mesh.world.sum_(sums);
  }
  const ToHost arriving(sums);
  const double* const data = arriving.here().const_data_ptr<double>();
  return {data[0], data[1]};
}

/// Asks all ranks at intervals, during a pass over rows, whether one of them is told to stop.
class StopQuestion {
 public:
  /// `catch_up`: waits for the device's work on the rows so far.
  StopQuestion(const ObjectiveContext& context, const std::function<bool()>& stops,
               const std::function<void()>& catch_up)
      : context_(context), stops_(stops), catch_up_(catch_up) {}

  /// `done`: rows so far, the same on all ranks. Collective over the world.
  bool answer(int64_t done) {
    if (done != next_) return false;
    catch_up_();
    const at::Tensor mine = at::tensor(
        {stops_() ? 1.0 : 0.0, seconds_since(start_) / static_cast<double>(done)}, at::kDouble);
    const auto [stop, seconds] = summed(context_.mesh, mine, context_.device);
    const double seconds_a_row = seconds / context_.mesh.world.size();
    next_ += static_cast<int64_t>(
        std::clamp(kSecondsBetweenQuestions / std::max(1e-6, seconds_a_row), 1.0, 1e6));
    return stop > 0.0;
  }

 private:
  const ObjectiveContext& context_;
  const std::function<bool()>& stops_;
  const std::function<void()>& catch_up_;
  Clock::time_point start_ = Clock::now();
  int64_t next_ = 1;
};

}  // namespace

EvaluatedRows evaluated_rows(const RunPlan& plan, const RowGroups& groups, const Group& world,
                             const ExampleSet& examples, int64_t batch_size) {
  int64_t longest = 0;
  for (int64_t i = 0; i < examples.size(); ++i) {
    const ExamplePointer example = examples.example(i);  // outlives the loop
    int64_t tokens = 0;
    for (const Sample& sample : example->documents) {
      tokens += std::ssize(sample.input_ids);
    }
    longest = std::max(longest, tokens);
  }
  for (const auto& [degree, of_rows] : plan.by_degree) {
    const RankRange own{.first = world.rank() / degree * degree, .count = degree};
    const bool holds = longest * batch_size <= plan.tokens_per_rank * degree;
    const bool divides = world.size() % degree == 0 &&
                         std::ssize(plan.ranks().ranges(degree)) == world.size() / degree;
    if (!divides || (!holds && degree < world.size())) continue;
    return {groups.of(own), own.first / degree, world.size() / degree};
  }
  throw std::logic_error("no ranks for the rows of an evaluation");
}

std::optional<EvaluationResult> evaluate(Objective& objective, const ObjectiveContext& context,
                                         const EvaluatedRows& rows, const ExampleSet& examples,
                                         int64_t batch_size, const std::function<bool()>& stops) {
  const at::NoGradGuard no_grad;
  const auto start = Clock::now();
  const Mesh& mesh = context.mesh;
  const Loader loader(examples.size(), batch_size, rows.group, rows.num_groups, /*shuffle=*/false,
                      /*seed=*/0);
  const bool leads = rows.attention.sharers().rank() == 0;
  context.model.use_attention(rows.attention);
  // The losses are summed on the device, so the host continues with the next row. It waits only
  // when it asks the others.
  const at::Tensor loss_sum = at::zeros({}, at::TensorOptions(context.device).dtype(at::kDouble));
  double weight_sum = 0.0;
  Averages averages, others;
  const std::function<void()> catch_up = [&] {
    ToHost(loss_sum).here();
    averages.sums();
    others.clear();
  };
  // Makes one row at a time, since the set may be large, and a run that is told to stop has little
  // time. Returns false if told to stop.
  const auto for_each_row = [&](const std::function<void(const Row&, size_t)>& use) {
    StopQuestion question(context, stops, catch_up);
    size_t number = 0;
    for (int64_t i = 0; i < loader.num_batches(); ++i) {
      if (question.answer(i)) return false;
      const std::vector<int64_t> places = loader.rows(/*epoch=*/0, i);
      // In the last batch, this group may have no rows.
      if (places.empty() && !context.idle_rows) continue;
      const Row row =
          make_row(draw(examples, places), objective.documents(), rows.attention, context.device);
      context.model.check_ids(row.whole);
      use(row, number++);
    }
    return true;
  };
  // Treats the set as the rows of one step, so that estimates cover all of it.
  objective.begin();
  if (objective.precomputes()) {
    if (!for_each_row([&](const Row& row, size_t) { objective.precompute(row); }))
      return std::nullopt;
    objective.end_precompute();
  }
  const bool done = for_each_row([&](const Row& row, size_t number) {
    const at::Tensor loss = objective.loss(row, number, 1.0, leads ? averages : others);
    if (leads || !objective.replicated()) loss_sum.add_(loss.reshape({}).to(at::kDouble));
    // Every member of a sequence group holds the whole row; only one counts its labels.
    if (leads) weight_sum += objective.weight(row);
  });
  if (!done) return std::nullopt;
  const at::Tensor weight =
      sent_to(at::full({}, weight_sum, at::TensorOptions().dtype(at::kDouble)), context.device);
  const auto [loss, weights] = summed(mesh, at::stack({loss_sum, weight}), context.device);
  EvaluationResult result;
  result.loss = loss / std::max(1.0, weights);
  result.means =
      objective.completed(averages.means(mesh.world, objective.averages(), context.device));
  result.seconds = seconds_since(start);
  result.num_samples = examples.size();
  result.num_batches = loader.num_batches();
  return result;
}

}  // namespace longspan
