#include "longspan/cuda/kernels.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "longspan/cuda/compiler.h"
#include "longspan/cuda/cubin_cache.h"
#include "longspan/cuda/cuda.h"
#include "longspan/text/deferred_warnings.h"
#include "longspan/text/print.h"

namespace longspan::cuda {
namespace {

class LoadedKernels : public Kernels {
 public:
  LoadedKernels(int index, Part part)
      : index_(index),
        device_(index),
        module_(device_.load(cubin_of(part, device_.capability()))) {}

  int num_multiprocessors() const override { return device_.num_multiprocessors(); }
  int shared_bytes() const override { return device_.shared_bytes(); }

 protected:
  void start(const std::string& name, const Launch& launch, const void* argument) override {
    device_.launch(function(name, launch.shared_bytes), launch, load_cuda().current_stream(index_),
                   argument);
  }

 private:
  struct Allowed {
    Function function;
    unsigned shared_bytes = kSharedBytesOfAnyKernel;
  };

  /// Returns the kernel, allowed to share as many bytes.
  Function function(const std::string& name, unsigned shared_bytes) {
    const std::lock_guard lock(mutex_);
    auto found = functions_.find(name);
    if (found == functions_.end()) {
      found = functions_.emplace(name, Allowed{device_.function(module_, name)}).first;
    }
    Allowed& kernel = found->second;
    if (shared_bytes > kernel.shared_bytes) {
      device_.allow_shared_bytes(kernel.function, shared_bytes);
      kernel.shared_bytes = shared_bytes;
    }
    return kernel.function;
  }

  int index_;
  Device device_;
  struct CudaModule* module_;
  std::mutex mutex_;
  std::unordered_map<std::string, Allowed> functions_;
};

std::atomic<int> switched_off{0};
std::atomic<Kernels*> lent{nullptr};
std::atomic<bool> refused{false};

void warn_once(const std::string& reason) {
  refused = true;
  static std::once_flag once;
  std::call_once(once, [&] {
    defer_warning(fmt::format(
        "warning: the kernels over rows cannot be used on this GPU: {}. PyTorch's operators "
        "take their place, which is slower.",
        reason));
  });
}

/// Returns null where the part cannot be loaded.
std::unique_ptr<LoadedKernels> load(int device, Part part) {
  try {
    if (compute_capability(device) < least_capability_of(part)) return nullptr;
    return std::make_unique<LoadedKernels>(device, part);
  } catch (const CompileError& error) {
    warn_once(error.what());
  } catch (const CodeRefused& error) {
    warn_once(error.what());
  }
  return nullptr;
}

}  // namespace

std::string cubin_of(Part part, int capability) {
  const Compiler& compiler = Compiler::get();
  const int architecture = compiler.architecture_for(capability);
  const std::string source = source_of(part);
  const std::string key =
      fmt::format("NVRTC {} {}\n{}", compiler.version(), compiler.options(architecture), source);
  const CubinCache cache = CubinCache::of_user();
  if (std::optional<std::string> cached = cache.find(key)) return *std::move(cached);
  std::string cubin = compiler.compile(source, name_of(part), architecture).cubin;
  cache.keep(key, cubin);
  return cubin;
}

Kernels* kernels_of(int device, Part part) {
  if (switched_off > 0) return nullptr;
  if (Kernels* const kernels = lent) return kernels;
  if (device < 0) return nullptr;  // not a GPU
  if (cuda_available() && load_cuda().replacement_kernels != nullptr) {
    return load_cuda().replacement_kernels(device);
  }
  static std::mutex mutex;
  static std::map<std::pair<int, Part>, std::unique_ptr<LoadedKernels>> loaded;
  const std::lock_guard lock(mutex);
  const auto found = loaded.find({device, part});
  if (found != loaded.end()) return found->second.get();
  return loaded.emplace(std::pair(device, part), load(device, part)).first->second.get();
}

bool kernels_were_refused() { return refused; }

void load_all_kernels(int device) {
  for (const Part part : kParts) kernels_of(device, part);
}

WithKernels::WithKernels(Kernels& kernels) { lent = &kernels; }
WithKernels::~WithKernels() { lent = nullptr; }

WithoutKernels::WithoutKernels() { ++switched_off; }
WithoutKernels::~WithoutKernels() { --switched_off; }

}  // namespace longspan::cuda
