// How much memory this process has used at most.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "longspan/plan/memory_model.h"

namespace longspan {

/// Measures the device's tensors while it lives: on CUDA by the statistics of torch's allocator, on
/// the CPU by counting allocations (memory/counting_allocator.h). Construct it before the tensors.
class PeakMeter {
 public:
  explicit PeakMeter(at::Device device);
  ~PeakMeter();
  PeakMeter(const PeakMeter&) = delete;
  PeakMeter& operator=(const PeakMeter&) = delete;

  /// Forgets the device's peak so far.
  void restart();
  /// The device's peak since the last restart(); the host's since this object is there, the
  /// process's since its start.
  MeasuredPeak peak() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
