#include "longspan/train/threads.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "longspan/text/counted.h"

namespace longspan {

void choose_threads() {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                           "SLURM_NTASKS_PER_NODE"}) {
    const char* value = std::getenv(name);
    if (value == nullptr) continue;
    const int num_workers = std::max(1, std::atoi(value));
    const int num_cores = static_cast<int>(std::thread::hardware_concurrency());
    at::set_num_threads(std::max(1, num_cores / num_workers));
    return;
  }
}

std::string device_text(const DeviceChoice& device) {
  if (device.cuda()) return "CUDA";
  return fmt::format("CPU with {} each ({})", counted(at::get_num_threads(), "thread"),
                     device.why_cpu);
}

}  // namespace longspan
