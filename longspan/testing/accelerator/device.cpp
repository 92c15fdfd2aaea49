// The device's guard, allocators and hooks for torch.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/operators.h"

namespace longspan::testing::accelerator {
namespace {

/// As many as in torch's pool of CUDA streams; high-priority streams have separate numbers.
constexpr int kPoolStreams = 32;

int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

c10::Stream stream_of(int device, int64_t id) {
  const c10::Device of(kDeviceType, static_cast<c10::DeviceIndex>(device));
  return c10::Stream(c10::Stream::UNSAFE, of, id);
}

int number_of(const c10::Stream& stream) {
  return Machine::get().stream(index_of(stream.device()), stream.id());
}

struct Event {
  Clock clock;
  int device;
  bool was_asked = false;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDeviceType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumDevices; }

  c10::Device getDevice() const override {
    return {kDeviceType, static_cast<c10::DeviceIndex>(current_device())};
  }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index_of(device), current_stream_id(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    static std::atomic<int64_t> next[2][kNumDevices];
    const int64_t turn = next[high_priority ? 1 : 0][index_of(device)]++ % kPoolStreams;
    return stream_of(index_of(device), 1 + turn + (high_priority ? kPoolStreams : 0));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    set_current_stream_id(index_of(stream.device()), stream.id());
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Machine::get().host_is_past(Machine::get().behind(number_of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Machine::get().wait_on_host(Machine::get().behind(number_of(stream)), "stream");
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    Machine::get().wait_on_host(Machine::get().behind_device(device), "device");
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event{{}, index_of(stream.device())};
    *static_cast<Event*>(*event) = {Machine::get().behind(number_of(stream)),
                                    index_of(stream.device())};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      Machine::get().put_after(number_of(stream), static_cast<Event*>(event)->clock);
    }
  }
  // An event is unfinished at the first query and finished at the second, so that polling ends and
  // code meets both answers.
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    auto& of = *static_cast<Event*>(event);
    if (!of.was_asked && !Machine::get().host_is_past(of.clock)) {
      of.was_asked = true;
      return false;
    }
    Machine::get().host_sees(of.clock);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      Machine::get().wait_on_host(static_cast<Event*>(event)->clock, "event");
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* /*first*/, void* /*second*/, c10::DeviceIndex /*d*/) const override {
    return 0;  // nothing takes time
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() != nullptr) Machine::get().tell_of(data.get(), number_of(stream));
  }
};

void free_block(void* block) { Machine::get().free(*static_cast<Allocation*>(block)); }

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    const int device = current_device();
    const c10::Device on(kDeviceType, static_cast<c10::DeviceIndex>(device));
    if (size == 0) return {nullptr, on};
    Allocation& block = Machine::get().allocate(size, device, current_stream(device));
    return {block.front, &block, free_block, on};
  }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*count*/) const override {
    TORCH_CHECK(false, "copies of the simulated device are launches");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get() != nullptr) Machine::get().tell_of(data.get(), number_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const DeviceBytes bytes = Machine::get().bytes(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    // There are no gaps between tensors here.
    for (auto* of : {&stats.allocated_bytes[kAll], &stats.reserved_bytes[kAll]}) {
      of->current = bytes.now;
      of->peak = bytes.most;
    }
    return stats;
  }
  /// The memory of a large GPU, or the number of bytes in the test's environment.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const char* const said = std::getenv("SIMULATED_MEMORY");
    const size_t total = said == nullptr ? size_t{80} << 30 : std::stoul(said);
    const auto used = static_cast<size_t>(Machine::get().bytes(device).now);
    return {total - std::min(total, used), total};
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex device) override { Machine::get().restart_peak(device); }
};

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, at::kCPU};
    Allocation& block = Machine::get().allocate(size, kPinned, 0);
    return {block.front, &block, free_block, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kNumDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override { return Machine::get().is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedMemory allocator;
    return &allocator;
  }
  c10::Device getDeviceFromPtr(void* data) const override {
    const Allocation* const block = Machine::get().find(data);
    TORCH_CHECK(block != nullptr && block->device != kPinned, "no memory of a device");
    return {kDeviceType, static_cast<c10::DeviceIndex>(block->device)};
  }
  // The CPU's kernels make random numbers, with generators of the CPU.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device*/) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex /*device*/) const override {
    return at::detail::createCPUGenerator();
  }
};

}  // namespace

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    // torch keeps these objects forever.
    c10::register_privateuse1_backend(kDeviceName);
    static const c10::impl::DeviceGuardImplRegistrar guard(kDeviceType, new Guard);
    c10::SetAllocator(kDeviceType, new DeviceMemory);
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    register_operators();
  });
  catch_touches();  // again, since others such as a test framework may have set a handler
}

}  // namespace longspan::testing::accelerator
