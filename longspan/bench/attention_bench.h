// `longspan bench attention`: measures the sequence-parallel methods and undistributed attention on
// the ranks of this run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/bench/attention_problem.h"
#include "longspan/bench/bench_device.h"
#include "longspan/bench/measured_kernel.h"
#include "longspan/comm/mesh.h"
#include "longspan/plan/attention_volume.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan {

struct AttentionBenchOptions {
  ProblemShape shape;
  std::vector<int64_t> document_lengths{8192};
  std::vector<const Method*> methods;  // empty: all methods that can split the heads
  std::vector<int> head_waves;  // numbers of waves: one row of the table each; empty: default
  std::optional<int> ulysses_size, ring_size, window_size;
  bool undistributed = true;
  int repeats = 5, warmup = 1;
  std::optional<int> threads;  // per rank; nullopt: the user gave no number
  int num_cores = 1;           // of this machine, for undistributed attention
};

/// Sets the number of threads of this process's computations, for example by at::set_num_threads.
using UseThreads = void (*)(int num_threads);

/// Sets the number of threads for its lifetime.
class ThreadsOfPass {
 public:
  ThreadsOfPass(UseThreads use, int num_threads);
  ~ThreadsOfPass();
  ThreadsOfPass(const ThreadsOfPass&) = delete;
  ThreadsOfPass& operator=(const ThreadsOfPass&) = delete;

 private:
  UseThreads use_;
  int before_;
};

/// One row of the table. Vectors of seconds have one element per repeat, measured by rank 0 between
/// barriers; all other vectors have one element per rank.
struct MethodMeasurement {
  std::string name;
  ParallelPlan plan;    // undistributed: on rank 0 alone, with the threads of all ranks of its node
  int num_threads = 1;  // of a rank
  int64_t num_padded_tokens = 0;
  std::vector<double> forward_seconds, backward_seconds;
  std::vector<KernelWork> kernel;  // forward plus backward; median over the repeats
  /// peak_bytes: peak memory in bytes of a forward and a backward, in addition to the inputs.
  /// buffer_bytes: this peak without the output and the gradients, which every method returns.
  std::vector<int64_t> peak_bytes, buffer_bytes;
  /// Bytes that all ranks together sent to other ranks, counted and by formula.
  AttentionVolume sent, formula;
  /// Relative error against undistributed attention in fp64: |x - y| / |y|.
  double output_error = 0;
  std::vector<double> gradient_errors;  // in the order of gradient_names()

  bool undistributed() const { return plan.sequence_size == 1; }
  double forward_median() const;
  double backward_median() const;
  double pass_median() const;  // of forward plus backward
  /// The largest value of a rank, divided by the mean over ranks.
  double time_imbalance() const;
  double pair_imbalance() const;
  int64_t largest_peak() const;
  int64_t largest_buffers() const;
  double largest_gradient_error() const;
};

struct AttentionBenchResult {
  AttentionBenchOptions options;
  int num_ranks = 1, threads = 1;
  std::string device;  // display name
  /// The row on which errors are measured: the benchmark's own row, or a shorter row if the
  /// benchmark's row takes too long in fp64.
  std::vector<int64_t> checked_lengths;
  std::vector<MethodMeasurement> methods;
};

/// Returns the plans of the table's rows except the undistributed one. Throws UserError if a named
/// method cannot split the heads, or cannot split them into the given number of waves. If no method
/// is named, plans with an impossible number of waves are left out, and a line for each is appended
/// to `skipped`.
std::vector<ParallelPlan> plans_of(const AttentionBenchOptions& options, int num_ranks,
                                   std::vector<std::string>* skipped = nullptr);

/// Returns "undistributed", or describe_method() of the plan.
std::string row_name(const ParallelPlan& plan);

/// Runs the benchmark. Methods take turns: A B C, C B A, ... Collective. The result is complete on
/// rank 0 and empty elsewhere. On GPUs the host waits for its GPU before it reads the clock. On a
/// CPU each rank computes with this process's number of threads. `use_threads` gives undistributed
/// attention the threads of all ranks of a node. `say` gets lines of progress on rank 0.
AttentionBenchResult run_attention_bench(const AttentionBenchOptions& options,
                                         const Rendezvous& where, const BenchDevice& on,
                                         UseThreads use_threads,
                                         void (*say)(const std::string& line));

}  // namespace longspan
