// Peak memory of this process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "longspan/memory/measured_peak.h"

namespace longspan {

/// Measures the device's tensors for its lifetime: on CUDA by the statistics of torch's allocator,
/// on the CPU by counting allocations (memory/counting_allocator.h). Construct a PeakMeter before
/// the tensors.
class PeakMeter {
 public:
  explicit PeakMeter(at::Device device);
  ~PeakMeter();
  PeakMeter(const PeakMeter&) = delete;
  PeakMeter& operator=(const PeakMeter&) = delete;

  /// Resets the peak of the device.
  void restart();
  /// Returns three peaks: of the device since the last restart(), of the host since construction,
  /// and of the process since its start.
  MeasuredPeak peak() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
