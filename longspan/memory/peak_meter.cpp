#include "longspan/memory/peak_meter.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <fstream>
#include <optional>
#include <string>

#include "longspan/memory/counting_allocator.h"
#include "longspan/memory/host_memory.h"

namespace longspan {
namespace {

/// Peak resident set (VmHWM, proc(5)) in bytes.
int64_t peak_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoll(line.substr(6));
  }
  return 0;
}

}  // namespace

struct PeakMeter::Impl {
  at::Device device;
  std::optional<AllocationCounter> counter;
};

PeakMeter::PeakMeter(at::Device device) : impl_(new Impl{device, std::nullopt}) {
  restart_host_peak();
  if (device.is_cpu()) impl_->counter.emplace(AllocationCounter::Of::kProcess);
}

PeakMeter::~PeakMeter() = default;

void PeakMeter::restart() {
  if (impl_->counter) {
    impl_->counter->restart_peak();
  } else {
    c10::getDeviceAllocator(impl_->device.type())->resetPeakStats(impl_->device.index());
  }
}

MeasuredPeak PeakMeter::peak() const {
  MeasuredPeak peak;
  if (impl_->counter) {
    peak.device = impl_->counter->peak_bytes();
  } else {
    const auto stats =
        c10::getDeviceAllocator(impl_->device.type())->getDeviceStats(impl_->device.index());
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    peak.device = stats.allocated_bytes[kAll].peak;
    peak.reserved = stats.reserved_bytes[kAll].peak;
  }
  peak.host = host_bytes().peak;
  peak.resident = peak_resident();
  return peak;
}

}  // namespace longspan
