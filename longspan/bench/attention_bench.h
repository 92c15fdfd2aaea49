// The sequence-parallel methods beside undistributed attention, on the ranks of this run: what
// `longspan bench attention` measures.
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
  std::vector<const Method*> methods;  // empty: all that can split the heads
  std::vector<int> head_waves;         // a row for each, where a method has waves; empty: its own
  std::optional<int> ulysses_size, ring_size, window_size;
  bool undistributed = true;
  int repeats = 5, warmup = 1;
  std::optional<int> threads;  // of a rank, where the caller was told how many
  int num_cores = 1;           // of this machine, which the undistributed attention may use
};

/// Has this process compute with so many threads: at::set_num_threads, say.
using UseThreads = void (*)(int num_threads);

/// While it lives, this process computes with so many threads.
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

/// One row of the table. Seconds by repeat, on rank 0's clock between barriers; the rest by rank.
struct MethodMeasurement {
  std::string name;
  ParallelPlan plan;    // undistributed: on rank 0 alone with the threads of all its node
  int num_threads = 1;  // of a rank
  int64_t num_padded_tokens = 0;
  std::vector<double> forward_seconds, backward_seconds;
  std::vector<KernelWork> kernel;  // of each rank: a forward and a backward, median of the repeats
  /// The most that a forward and backward held above its inputs, and that less the output and the
  /// gradients, which every method hands over.
  std::vector<int64_t> peak_bytes, buffer_bytes;
  /// Sent to other ranks by all of them, counted and by formula.
  AttentionVolume sent, formula;
  /// Relative, against undistributed attention in fp64: |x - y| / |y|.
  double output_error = 0;
  std::vector<double> gradient_errors;  // gradient_names()

  bool undistributed() const { return plan.sequence_size == 1; }
  double forward_median() const;
  double backward_median() const;
  double pass_median() const;  // of forward plus backward
  /// Largest over mean.
  double time_imbalance() const;
  double pair_imbalance() const;
  int64_t largest_peak() const;
  int64_t largest_buffers() const;
  double largest_gradient_error() const;
};

struct AttentionBenchResult {
  AttentionBenchOptions options;
  int num_ranks = 1, threads = 1;
  std::string device;  // what users call it
  /// The row on which errors are measured: the benchmark's own unless that is too long for fp64.
  std::vector<int64_t> checked_lengths;
  std::vector<MethodMeasurement> methods;
};

/// The plans of the rows, without the undistributed one. Throws UserError when a method that was
/// asked for cannot split the heads, or not in so many waves. With none named a number of waves
/// that one refuses is left out, with a line in `skipped`.
std::vector<ParallelPlan> plans_of(const AttentionBenchOptions& options, int num_ranks,
                                   std::vector<std::string>* skipped = nullptr);

/// "undistributed", or as describe_method() says.
std::string row_name(const ParallelPlan& plan);

/// Methods take turns: A B C, C B A, ... Collective; the result is complete on rank 0, elsewhere
/// empty. On GPUs the host waits for its own before it looks at the clock. On a CPU each rank
/// computes with the threads that this process computes with, undistributed
/// attention with those of all ranks of a node, by `use_threads`. `say` gets a line now and then,
/// on rank 0.
AttentionBenchResult run_attention_bench(const AttentionBenchOptions& options,
                                         const Rendezvous& where, const BenchDevice& on,
                                         UseThreads use_threads,
                                         void (*say)(const std::string& line));

}  // namespace longspan
