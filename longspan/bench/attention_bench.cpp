// T: tokens of the row, t: tokens of one rank.
#include "longspan/bench/attention_bench.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "longspan/bench/check_against_fp64.h"
#include "longspan/bench/gather_numbers.h"
#include "longspan/memory/peak_meter.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kTimeoutSeconds = 7200;  // for a collective: a rank may wait for a long row
constexpr uint64_t kSeed = 1;

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double largest_over_mean(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum > 0 ? std::ranges::max(values) * static_cast<double>(values.size()) / sum : 1.0;
}

int64_t all_bytes(const Traffic& traffic) {
  return traffic.all_to_all + traffic.all_gather + traffic.reduce_scatter + traffic.shift +
         traffic.sum;
}

/// Where a rank measures.
struct BenchRank {
  Group world;
  const BenchDevice& device;
  UseThreads use_threads;
};

/// A method on one rank. Undistributed: on rank 0 alone, with more threads.
class Contender {
 public:
  Contender(const AttentionBenchOptions& options, const ParallelPlan& plan, const Mesh& mesh,
            const BenchRank& on, int num_threads)
      : device_(on.device.device),
        kernel_(*on.device.kernel),
        world_(on.world),
        mesh_(mesh),
        idle_(plan.sequence_size == 1 && world_.rank() != 0),
        use_threads_(on.use_threads),
        num_threads_(num_threads),
        attention_(make_attention(plan, mesh, kernel_)) {
    measured_.name = row_name(plan);
    measured_.plan = plan;
    measured_.num_threads = num_threads;
    if (idle_) return;
    const Packing row = Packing::from_lengths(options.document_lengths);
    const TokenOrder order = attention_->token_order(row);
    measured_.num_padded_tokens = order.packing.num_tokens();
    measured_.formula = formula(options, plan, order.packing);
    problem_ = std::make_unique<AttentionProblem>(
        options.shape, row, order,
        ProblemInputs::random(options.shape, static_cast<int64_t>(order.index.size()),
                              kSeed + world_.rank()));
  }

  SequenceParallel& attention() { return *attention_; }
  const Mesh& mesh() const { return mesh_; }
  MethodMeasurement& measured() { return measured_; }

  /// Runs the first pass, which measures memory and traffic and no time.
  void count() {
    const ThreadsOfPass threads(use_threads_, num_threads_);
    if (!idle_) {
      PeakMeter meter(device_);
      meter.restart();
      const int64_t held = meter.peak().device;
      const Traffic before = sequence_traffic(mesh_);
      at::Tensor out = problem_->forward(*attention_);
      const int64_t forward_peak = meter.peak().device - held;
      const Traffic between = sequence_traffic(mesh_);
      out = at::Tensor();
      problem_->backward(*attention_);
      const Traffic after = sequence_traffic(mesh_);
      const int64_t peak = meter.peak().device - held;
      const int64_t out_bytes = problem_->output_bytes(), grad_bytes = problem_->gradient_bytes();
      peak_ = peak;
      buffers_ = std::max<int64_t>({0, forward_peak - out_bytes, peak - out_bytes - grad_bytes});
      sent_forward_ = all_bytes(between) - all_bytes(before);
      sent_backward_ = all_bytes(after) - all_bytes(between);
      kernel_.take_forward();
      kernel_.take_backward();
    }
    meet();
  }

  /// Runs a timed pass. `keep`: records its numbers.
  void time(bool keep) {
    const ThreadsOfPass threads(use_threads_, num_threads_);
    meet();
    const Clock::time_point begin = Clock::now();
    if (!idle_) problem_->forward(*attention_);
    meet();
    const Clock::time_point middle = Clock::now();
    if (!idle_) problem_->backward(*attention_);
    meet();
    const Clock::time_point end = Clock::now();
    const KernelWork forward = kernel_.take_forward(), backward = kernel_.take_backward();
    if (!keep) return;
    measured_.forward_seconds.push_back(std::chrono::duration<double>(middle - begin).count());
    measured_.backward_seconds.push_back(std::chrono::duration<double>(end - middle).count());
    kernel_seconds_.push_back(forward.seconds + backward.seconds);
    // A backward computes the pairs of the forward again.
    pairs_ = std::max(forward.pairs, backward.pairs);
  }

  /// Gathers the numbers of all ranks. Collective.
  void gather() {
    const auto rows =
        gather_numbers(world_,
                       {idle_ ? 0.0 : median(kernel_seconds_), pairs_, static_cast<double>(peak_),
                        static_cast<double>(buffers_), static_cast<double>(sent_forward_),
                        static_cast<double>(sent_backward_)},
                       device_);
    for (const std::vector<double>& row : rows) {
      // Undistributed attention has one rank.
      if (measured_.undistributed() && !measured_.kernel.empty()) break;
      measured_.kernel.push_back({row[0], row[1]});
      measured_.peak_bytes.push_back(static_cast<int64_t>(row[2]));
      measured_.buffer_bytes.push_back(static_cast<int64_t>(row[3]));
      measured_.sent.forward += static_cast<int64_t>(row[4]);
      measured_.sent.backward += static_cast<int64_t>(row[5]);
    }
  }

 private:
  /// Waits until all ranks and their devices have finished.
  void meet() const {
    wait_for_device(device_);
    world_.barrier();
  }

  static AttentionVolume formula(const AttentionBenchOptions& options, const ParallelPlan& plan,
                                 const Packing& padded) {
    if (plan.sequence_size == 1) return {};
    const ProblemShape& shape = options.shape;
    const AttentionShape heads(shape.attention(),
                               static_cast<int64_t>(c10::elementSize(shape.dtype)));
    return attention_volume(plan, heads, padded, shape.checkpointing);
  }

  at::Device device_;
  MeasuredKernel kernel_;
  Group world_;
  Mesh mesh_;
  bool idle_;
  UseThreads use_threads_;
  int num_threads_;
  std::unique_ptr<SequenceParallel> attention_;
  std::unique_ptr<AttentionProblem> problem_;
  MethodMeasurement measured_;
  std::vector<double> kernel_seconds_;
  double pairs_ = 0;
  int64_t peak_ = 0, buffers_ = 0, sent_forward_ = 0, sent_backward_ = 0;
};

}  // namespace

ThreadsOfPass::ThreadsOfPass(UseThreads use, int num_threads)
    : use_(use), before_(at::get_num_threads()) {
  if (num_threads != before_) use_(num_threads);
}

ThreadsOfPass::~ThreadsOfPass() {
  if (at::get_num_threads() != before_) use_(before_);
}

double MethodMeasurement::forward_median() const { return median(forward_seconds); }
double MethodMeasurement::backward_median() const { return median(backward_seconds); }

double MethodMeasurement::pass_median() const {
  std::vector<double> passes;
  for (size_t i = 0; i < forward_seconds.size(); ++i) {
    passes.push_back(forward_seconds[i] + backward_seconds[i]);
  }
  return median(passes);
}

double MethodMeasurement::time_imbalance() const {
  std::vector<double> seconds;
  for (const KernelWork& work : kernel) seconds.push_back(work.seconds);
  return largest_over_mean(seconds);
}

double MethodMeasurement::pair_imbalance() const {
  std::vector<double> pairs;
  for (const KernelWork& work : kernel) pairs.push_back(work.pairs);
  return largest_over_mean(pairs);
}

int64_t MethodMeasurement::largest_peak() const { return std::ranges::max(peak_bytes); }
int64_t MethodMeasurement::largest_buffers() const { return std::ranges::max(buffer_bytes); }
double MethodMeasurement::largest_gradient_error() const {
  return std::ranges::max(gradient_errors);
}

AttentionBenchResult run_attention_bench(const AttentionBenchOptions& options,
                                         const Rendezvous& where, const BenchDevice& on,
                                         UseThreads use_threads,
                                         void (*say)(const std::string& line)) {
  const int num_ranks = where.world_size, threads = at::get_num_threads();
  std::vector<std::string> skipped;
  std::vector<ParallelPlan> plans = plans_of(options, num_ranks, &skipped);
  std::vector<Mesh> meshes =
      make_meshes(joined_start(where, kTimeoutSeconds), plans, on.link, kTimeoutSeconds);
  const Group world = meshes.empty() ? Group() : meshes[0].world;
  // More threads than cores would slow each other down.
  const int threads_alone = std::max(
      threads, std::min(options.num_cores, threads * std::min(where.local_world_size, num_ranks)));
  const BenchRank rank{world, on, use_threads};
  std::vector<std::unique_ptr<Contender>> contenders;
  if (options.undistributed || plans.empty()) {
    contenders.push_back(
        std::make_unique<Contender>(options, ParallelPlan{}, Mesh{}, rank, threads_alone));
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    contenders.push_back(std::make_unique<Contender>(options, plans[i], meshes[i], rank, threads));
  }

  const auto report = [&](const std::string& line) {
    if (where.rank == 0) say(line);
  };
  for (const std::string& line : skipped) report(line);
  AttentionBenchResult result{.options = options,
                              .num_ranks = num_ranks,
                              .threads = threads,
                              .device = on.name,
                              .checked_lengths = {},
                              .methods = {}};
  const CheckAgainstFp64 check(options.shape, options.document_lengths, world, use_threads,
                               threads_alone);
  result.checked_lengths = check.document_lengths();
  for (auto& contender : contenders) {
    report(fmt::format("checking {}", contender->measured().name));
    const bool alone = contender->measured().undistributed();
    check.compare(contender->attention(), alone, contender->measured());
    contender->count();
  }
  for (int round = 0; round < options.warmup + options.repeats; ++round) {
    report(fmt::format("round {} of {}{}", round + 1, options.warmup + options.repeats,
                       round < options.warmup ? " (warm-up)" : ""));
    for (size_t i = 0; i < contenders.size(); ++i) {
      const size_t turn = round % 2 == 0 ? i : contenders.size() - 1 - i;
      contenders[turn]->time(round >= options.warmup);
    }
  }
  for (auto& contender : contenders) {
    contender->gather();
    result.methods.push_back(contender->measured());
  }
  contenders.clear();
  for (const Mesh& mesh : meshes) shut_down(mesh);
  return result;
}

}  // namespace longspan
