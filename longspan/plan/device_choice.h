// Where a run computes: the only place that decides. No torch.
#pragma once

#include <functional>
#include <string>

#include "longspan/config/model_settings.h"

namespace longspan {

/// What a machine offers.
struct Gpus {
  int count = 0;
  std::string why_none;   // one clause, where count is 0
  bool broken = false;    // there is a driver, but this torch cannot use it
  std::string name = {};  // what users call them, where count is not 0
};

/// The machine that a program computes on, as it hands it to the plan of a run.
struct Machine {
  std::function<Gpus()> look_for_gpus;  // comm/cuda.h has one; not called for device: cpu
  int num_threads = 1;                  // of this process, where it computes on a CPU
  int num_cores = 0;                    // 0: not known
};

enum class DeviceKind { kCpu, kCuda };

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  int num_gpus = 0;     // of this machine; 0 on a CPU
  bool shared = false;  // GPUs may have several processes, which exchange through the host
  std::string why_cpu;  // one clause: the key, or why there is no GPU; empty on CUDA
  std::string gpu_name = {};

  bool cuda() const { return kind == DeviceKind::kCuda; }
};

/// By the key `device`. `look` finds the GPUs of this machine; it is not called for device: cpu, so
/// that no driver is loaded then. Throws UserError, with what to set: device: cuda without a GPU;
/// a GPU that this build or this driver cannot use, unless device: cpu is given.
DeviceChoice choose_device(const ModelSettings& config, const std::function<Gpus()>& look);

/// Throws UserError when `num_processes` on this machine are more than its GPUs, on CUDA, unless
/// they are shared.
void require_gpus(const DeviceChoice& choice, int num_processes);

}  // namespace longspan
