#include "longspan/cuda/device_choice.h"

#include <fmt/format.h>

#include "longspan/base/user_error.h"
#include "longspan/settings/choices.h"
#include "longspan/text/counted.h"

namespace longspan {

DeviceChoice choose_device(const ModelSettings& config, const std::function<Gpus()>& find) {
  const WantedDevice wanted = wanted_device_of(config);
  if (wanted == WantedDevice::kCpu) {
    return {.kind = DeviceKind::kCpu, .why_cpu = "as device: cpu asks"};
  }
  const bool asked = wanted == WantedDevice::kCuda;
  const Gpus gpus = find();
  if (gpus.count == 0) {
    if (!asked && gpus.broken) {
      throw UserError(fmt::format(
          "This machine has an NVIDIA driver, but CUDA cannot be used: {}. Mend that, or set "
          "device: cpu to train on the processor.",
          gpus.why_none));
    }
    if (!asked) return {.kind = DeviceKind::kCpu, .why_cpu = "no CUDA: " + gpus.why_none};
    throw UserError(
        fmt::format("device: cuda was given, but CUDA cannot be used: {}. Set device: cpu (or "
                    "auto) to train on "
                    "the processor.",
                    gpus.why_none));
  }
  return {.kind = DeviceKind::kCuda,
          .num_gpus = gpus.count,
          .shared = config.share_gpus,
          .why_cpu = {},
          .gpu_name = gpus.name};
}

void require_gpus(const DeviceChoice& choice, int num_processes) {
  if (!choice.cuda() || choice.shared || num_processes <= choice.num_gpus) return;
  throw UserError(fmt::format(
      "{} {} on this machine, but {} {}, and each process needs one of its own. Start {} here "
      "(nproc_per_node), show all GPUs to every process (CUDA_VISIBLE_DEVICES; with srun "
      "--gpu-bind=none), set share_gpus: true to try things out with several processes on a GPU, "
      "or "
      "device: cpu to train on the processor.",
      counted(num_processes, "process"), num_processes == 1 ? "runs" : "run",
      num_processes == 1 ? "it sees" : "they see", counted(choice.num_gpus, "GPU"),
      choice.num_gpus));
}

}  // namespace longspan
