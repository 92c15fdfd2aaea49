// Chooses the device of a run. No other code chooses a device. No torch.
#pragma once

#include <functional>
#include <string>

#include "longspan/settings/model_settings.h"

namespace longspan {

/// GPUs of a machine.
struct Gpus {
  int count = 0;
  std::string why_none;   // a clause, if count is 0
  bool broken = false;    // there is a driver, but this torch cannot use it
  std::string name = {};  // display name, if count is not 0
};

/// The machine of a program. The program passes it to the plan of a run.
struct Machine {
  std::function<Gpus()> find_gpus;  // as in cuda/cuda.h; not called for device: cpu
  int num_threads = 1;              // threads of this process, on a CPU
  int num_cores = 0;                // 0: unknown
};

enum class DeviceKind { kCpu, kCuda };

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  int num_gpus = 0;     // on this machine; 0 for a CPU
  bool shared = false;  // several processes may share a GPU, and exchange data through the host
  std::string why_cpu;  // a clause: the key, or why there is no GPU; empty for CUDA
  std::string gpu_name = {};

  bool cuda() const { return kind == DeviceKind::kCuda; }
};

/// Chooses by the key `device`. `find` returns the GPUs of this machine. `find` is not called for
/// device: cpu, so that no driver is loaded. Throws UserError with the remedy for device: cuda
/// without a GPU, and, unless device: cpu is set, for a GPU that this build or driver cannot use.
DeviceChoice choose_device(const ModelSettings& config, const std::function<Gpus()>& find);

/// Throws UserError if the choice is CUDA without shared GPUs, and this machine has fewer GPUs than
/// processes (`num_processes`).
void require_gpus(const DeviceChoice& choice, int num_processes);

}  // namespace longspan
