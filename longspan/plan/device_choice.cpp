#include "longspan/plan/device_choice.h"

#include <fmt/format.h>

#include "longspan/config/user_error.h"
#include "longspan/text/counted.h"

namespace longspan {

DeviceChoice choose_device(const Config& config, const std::function<Gpus()>& look) {
  if (config.device == "cpu")
    return {.kind = DeviceKind::kCpu, .num_gpus = 0, .why_cpu = "as device: cpu asks"};
  const bool asked = config.device == "cuda";
  if (!asked && config.device != "auto") {
    throw UserError(fmt::format("device: {} is none of auto, cuda, cpu", config.device));
  }
  const Gpus gpus = look();
  if (gpus.count == 0) {
    if (!asked)
      return {.kind = DeviceKind::kCpu, .num_gpus = 0, .why_cpu = "no CUDA: " + gpus.why_none};
    throw UserError(
        fmt::format("device: cuda was given, but CUDA cannot be used: {}. Set device: cpu (or "
                    "auto) to train on "
                    "the processor.",
                    gpus.why_none));
  }
  if (!config.bf16 && !config.pure_bf16) {
    throw UserError(fmt::format(
        "{}, and training on GPUs is built for 16 bits only, not yet for fp32. Set bf16: true to "
        "train there, or device: cpu to train in fp32 on the processor.",
        asked ? "device: cuda was given"
              : fmt::format("this machine has {}, which device: auto takes",
                            counted(gpus.count, "GPU"))));
  }
  return {.kind = DeviceKind::kCuda, .num_gpus = gpus.count, .why_cpu = {}};
}

void require_gpus(const DeviceChoice& choice, int num_processes) {
  if (!choice.cuda() || num_processes <= choice.num_gpus) return;
  throw UserError(fmt::format(
      "{} {} on this machine, but {} {}, and each process needs one of its own. Start {} here "
      "(nproc_per_node), show all GPUs to every process (CUDA_VISIBLE_DEVICES; with srun "
      "--gpu-bind=none), or set device: cpu to train on the processor.",
      counted(num_processes, "process"), num_processes == 1 ? "runs" : "run",
      num_processes == 1 ? "it sees" : "they see", counted(choice.num_gpus, "GPU"),
      choice.num_gpus));
}

}  // namespace longspan
