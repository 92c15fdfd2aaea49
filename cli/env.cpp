// `longspan env` and `longspan version`.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/launcher.h"
#include "cli/process/cores.h"
#include "cli/torch_runtime.h"
#include "longspan/attention/flash/flash_attention.h"
#include "longspan/attention/flash3_attention.h"
#include "longspan/cpu/vector_math.h"
#include "longspan/cuda/compiler.h"
#include "longspan/cuda/cuda.h"
#include "longspan/kernels/gemm.h"
#include "longspan/pictures/video_file.h"
#include "longspan/text/counted.h"
#include "longspan/text/print.h"

namespace longspan {

namespace {

int show_version(const Arguments&) {
  print_out("longspan {}\n", LONGSPAN_VERSION);
  return 0;
}

/// Describes the compiler of the GPU's row kernels.
std::string cuda_kernels() {
  try {
    return fmt::format("compiled by NVRTC {}", cuda::Compiler::get().version());
  } catch (const cuda::CompileError& error) {
    return fmt::format("none, torch's operators compute: {}", error.what());
  }
}

int show_environment(const Arguments&) {
  const auto line = [](std::string_view name, const std::string& value) {
    print_out("{:<18} {}\n", name, value);
  };
  line("longspan", LONGSPAN_VERSION);
  line("compiler", fmt::format("{} ({})", __VERSION__, __cplusplus));
  line("torch", fmt::format("{} in {}", torch_version(), torch_directory()));
  line("compiled against", fmt::format("torch {}", LONGSPAN_TORCH_VERSION));
  line("torchrun", find_torchrun().value_or("not found"));
  line("CPU", fmt::format("{}, torch's vector instructions {}", counted(num_cores(), "core"),
                          at::get_cpu_capability()));
  // Why the capability is lower than the processor's.
  const std::string why = cpu_capability() == widest_cpu_capability()
                              ? ""
                              : fmt::format(" ({}; the processor runs {})", kCpuCapabilityVariable,
                                            name_of(widest_cpu_capability()));
  line("attention tiles", flash::best_tiles().instructions + why);
  line("vector math", vector_math::kernels().instructions + why);
  line("fp32 gemms", gemm_library());
  line("threads", fmt::format("{}", at::get_num_threads()));
  line("CUDA", cuda_available() ? counted(load_cuda().num_devices(), "GPU")
                                : fmt::format("not available: {}", why_no_cuda()));
  if (cuda_available()) line("CUDA kernels", cuda_kernels());
  const std::string flash3 = flash3::installed();
  line("FlashAttention-3", flash3.empty() ? "not installed beside torch" : flash3);
  const VideoDecoder decoder = find_video_decoder();
  line("video files", decoder.ffmpeg.empty() ? fmt::format("not read: {}", decoder.why_none)
                                             : fmt::format("read by FFmpeg {}", decoder.ffmpeg));
  return 0;
}

}  // namespace

Command version_command() {
  return {"version", "print the version", "Prints the version of longspan.\n", show_version,
          /*computes=*/false};
}

Command env_command() {
  return {"env", "print versions and devices, for bug reports",
          "Prints what longspan runs on: versions, CPU, which of the program's vector loops run, "
          "threads, CUDA. Put it into bug reports.\n",
          show_environment, /*computes=*/false};
}

}  // namespace longspan
