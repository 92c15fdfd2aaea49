#include "cli/process/resources.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

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

void bound_compiled_gemms() {
  setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256", /*overwrite=*/0);
  setenv("LRU_CACHE_CAPACITY", "128", /*overwrite=*/0);
  // cuBLAS gives the same bits each time only with workspaces of its own for each stream. This is
  // how much it takes on Hopper anyway.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
}

}  // namespace longspan
