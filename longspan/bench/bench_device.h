// Where the benchmark computes, and what of the program depends on it.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/plan/device_choice.h"

namespace longspan {

struct BenchDevice {
  at::Device device{at::kCPU};
  Link link = Link::kGloo;
  const BlockKernel* kernel = &cpu_block_kernel();
  std::string name = "CPU";  // what users call it
};

/// The GPU of a process, the `local_rank`-th of its machine, which it makes its own; or the CPU.
BenchDevice bench_device(const DeviceChoice& choice, int local_rank);

/// The host waits until the device has done all that it was given. On a CPU nothing is open.
void wait_for_device(at::Device device);

}  // namespace longspan
