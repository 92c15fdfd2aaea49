#include "cli/process/resources.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Logging.h>
#include <sys/resource.h>
#if __has_include(<c10/core/AllocatorConfig.h>)
#include <c10/core/AllocatorConfig.h>
#endif

#include <cstdlib>
#include <string>

#include "cli/process/cores.h"
#include "longspan/memory/tensor_pool.h"

// Older versions of torch lack this header or these settings, and fail at unknown names.
namespace c10::CachingAllocator {
class AcceleratorAllocatorConfig;
}

namespace longspan {

namespace {

template <typename Settings>
constexpr bool bounds_rounding() {
  return requires { Settings::pinned_max_round_threshold(); };
}

}  // namespace

void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));  // if refused, the limit stays
}

void choose_threads(const Rendezvous& where) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int threads = threads_of_worker(where, cores_of_process()),
            by_torch = at::get_num_threads();
  // Alone, a process keeps torch's number, which may be that of physical cores.
  if (where.local_world_size > 1 ? threads != by_torch : threads < by_torch) {
    at::set_num_threads(threads);
  }
}

void bound_compiled_gemms() {
  setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256", /*overwrite=*/0);
  setenv("LRU_CACHE_CAPACITY", "128", /*overwrite=*/0);
  // cuBLAS is bit-reproducible only with a separate workspace for each stream. This is its default
  // size on Hopper.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
}

void use_tensor_pool() { c10::SetCPUAllocator(&tensor_pool(), /*priority=*/100); }

void quiet_c10d() {
  constexpr const char* kName = "TORCH_CPP_LOG_LEVEL";
  const bool is_given = std::getenv(kName) != nullptr;
  if (!is_given) setenv(kName, "FATAL", /*overwrite=*/0);
  c10::initLogging();  // without this call, a C++ program ignores the variable
  if (!is_given) unsetenv(kName);
}

void choose_allocation() {
  if (std::getenv("PYTORCH_ALLOC_CONF") != nullptr ||
      std::getenv("PYTORCH_CUDA_ALLOC_CONF") != nullptr) {
    return;
  }
  std::string settings = "expandable_segments:True";
  if constexpr (bounds_rounding<c10::CachingAllocator::AcceleratorAllocatorConfig>()) {
    settings += ",pinned_max_round_threshold_mb:1";
  }
  setenv("PYTORCH_CUDA_ALLOC_CONF", settings.c_str(), /*overwrite=*/0);
}

}  // namespace longspan
