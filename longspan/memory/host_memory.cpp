#include "longspan/memory/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "longspan/base/user_error.h"
#include "longspan/memory/out_of_memory.h"

namespace longspan {
namespace {

std::atomic<int64_t> live_bytes{0}, peak_bytes{0};

void count(int64_t num_bytes) {
  const int64_t now = live_bytes.fetch_add(num_bytes) + num_bytes;
  int64_t known = peak_bytes.load();
  while (known < now && !peak_bytes.compare_exchange_weak(known, now)) {
  }
}

[[noreturn]] void refuse(int64_t num_bytes) {
  throw UserError(fmt::format(
      "The host has no room for {:.1f} MiB more beside the {:.1f} MiB that are offloaded to it. "
      "Take more processes to share the model and the row, offload less, or set "
      "offload_activations: disk.",
      static_cast<double>(num_bytes) / (1 << 20),
      static_cast<double>(live_bytes.load()) / (1 << 20)));
}

/// Smaller blocks come from the heap, larger ones from mmap, so that they return to the system at
/// once.
constexpr int64_t kMapped = int64_t{1} << 20;
constexpr std::align_val_t kAlignment{64};

void* take(int64_t num_bytes) {
  if (num_bytes < kMapped) {
    void* memory = ::operator new(static_cast<size_t>(num_bytes), kAlignment, std::nothrow);
    return memory != nullptr ? memory : (refuse(num_bytes), nullptr);
  }
  void* memory = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) refuse(num_bytes);
  return memory;
}

void give_back(void* memory, int64_t num_bytes) {
  if (num_bytes < kMapped) {
    ::operator delete(memory, kAlignment);
  } else {
    munmap(memory, static_cast<size_t>(num_bytes));
  }
}

/// Returns a view of `tensor` whose bytes count as live until the last view of it dies.
at::Tensor counted(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t num_bytes) {
  return at::from_blob(
      tensor.data_ptr(), sizes, [tensor, num_bytes](void*) { live_bytes -= num_bytes; },
      tensor.options());
}

}  // namespace

at::Tensor empty_on_host(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
  const int64_t num_bytes =
      c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  if (num_bytes == 0) return at::empty(sizes, options);
  if (!device.is_cpu()) {
    at::Tensor pinned;
    try {
      pinned = at::empty(sizes, options.pinned_memory(true));
    } catch (const c10::Error& error) {
      if (!is_out_of_memory(error)) throw;
      refuse(num_bytes);
    }
    count(num_bytes);
    // CUDA recognizes pinned memory by its address, so a view is as good.
    return counted(pinned, sizes, num_bytes);
  }
  void* memory = take(num_bytes);
  count(num_bytes);
  return at::from_blob(
      memory, sizes,
      [num_bytes](void* address) {
        give_back(address, num_bytes);
        live_bytes -= num_bytes;
      },
      options);
}

at::Tensor empty_on_host_like(const at::Tensor& x) {
  return empty_on_host(x.sizes(), x.scalar_type(), x.device());
}

HostBytes host_bytes() { return {live_bytes.load(), peak_bytes.load()}; }

void restart_host_peak() { peak_bytes.store(live_bytes.load()); }

}  // namespace longspan
