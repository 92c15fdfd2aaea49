#include "longspan/attention/refusals.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <stdexcept>

#include "longspan/cuda/gpu_error.h"
#include "longspan/memory/out_of_memory.h"

namespace longspan {
namespace {

constexpr size_t kBytesOfKernels = size_t{256} << 20;

}  // namespace

std::string reason_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string what = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return what.substr(0, what.find('\n'));
}

bool is_refusal(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  // A library without torch's error types throws the other kind.
  if (of_torch == nullptr && dynamic_cast<const std::runtime_error*>(&error) == nullptr) {
    return false;
  }
  return !is_out_of_memory(error) &&
         !is_error_of_gpu(of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
}

void empty_cache(at::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
}

bool is_short_of_memory(at::Device device) {
  return !device.is_cpu() &&
         c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first <
             kBytesOfKernels;
}

}  // namespace longspan
