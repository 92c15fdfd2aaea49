// The benchmark's device, and the link and kernel for this device.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/cuda/device_choice.h"

namespace longspan {

struct BenchDevice {
  at::Device device{at::kCPU};
  Link link = Link::kGloo;
  const BlockKernel* kernel = &cpu_block_kernel();
  std::string name = "CPU";  // display name
};

/// Returns the CPU, or the GPU of this process: the `local_rank`-th GPU of its machine, which
/// becomes the current device.
BenchDevice bench_device(const DeviceChoice& choice, int local_rank);

/// Blocks the host until the device has finished all work. No-op on a CPU.
void wait_for_device(at::Device device);

}  // namespace longspan
