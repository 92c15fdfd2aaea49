// Measures the errors of a method against undistributed attention in fp64.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/bench/attention_bench.h"
#include "longspan/comm/group.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

class CheckAgainstFp64 {
 public:
  /// Computes the row undistributed in fp64 on rank 0 with `num_threads`. A row that would take too
  /// long is replaced by a shorter row with documents in the same proportion. Collective.
  CheckAgainstFp64(const ProblemShape& shape, const std::vector<int64_t>& document_lengths,
                   const Group& world, UseThreads use_threads, int num_threads);

  const std::vector<int64_t>& document_lengths() const { return document_lengths_; }

  /// Computes the same row by `attention`, on all ranks or, with `alone`, on rank 0 only. Sets the
  /// errors in `measured` on rank 0. Collective.
  void compare(SequenceParallel& attention, bool alone, MethodMeasurement& measured) const;

 private:
  ProblemShape shape_;
  std::vector<int64_t> document_lengths_;
  Group world_;
  at::Tensor out_;
  ProblemGradients gradients_;
};

}  // namespace longspan
