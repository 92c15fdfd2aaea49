#include "longspan/memory/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

namespace longspan {

int64_t device_memory(at::Device device, int64_t beside_tensors, int64_t num_ranks) {
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
  const auto [free, all] = allocator->getMemoryInfo(device.index());
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const int64_t own =
      std::max(stats.reserved_bytes[kAll].current, stats.allocated_bytes[kAll].current);
  const auto total = static_cast<int64_t>(all);
  const int64_t of_others = total - static_cast<int64_t>(free) - num_ranks * (own + beside_tensors);
  // Up to 2% is a driver context of slightly another size, not another program. So a run alone on
  // its GPUs gets the same number each time.
  return of_others > total / 50 ? total - of_others : total;
}

}  // namespace longspan
