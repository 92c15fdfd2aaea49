#include "longspan/testing/accelerator/memory.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <iterator>
#include <new>

namespace longspan::testing::accelerator {
namespace {

constexpr size_t kDeviceWindow = size_t{1} << 40, kPinnedWindow = size_t{1} << 38;
constexpr size_t kUnit = 512;
constexpr int kPoison = 0xff;
/// Freed memory of this size or more returns to the system, and is filled again when it is reused.
constexpr size_t kLarge = size_t{1} << 20;

size_t rounded(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

}  // namespace

std::string& last_launch() {
  static thread_local std::string name;
  return name;
}

std::string Allocation::text() const {
  const std::string where =
      device == kPinned ? "pinned memory" : fmt::format("made on device {}", device);
  return fmt::format("allocation {} ({} bytes, {}{})", number, requested, where,
                     made_after.empty() ? "" : " after " + made_after);
}

Memory::Memory()
    : device_("simulated device", kDeviceWindow, PROT_NONE),
      pinned_("simulated pinned memory", kPinnedWindow, PROT_READ | PROT_WRITE) {}

Allocation& Memory::allocate(size_t requested, int device, int stream) {
  const bool pinned = device == kPinned;
  const size_t unit = pinned || requested >= kLarge ? kPage : kUnit;
  size_t size = rounded(requested, unit);
  Pool& pool = pools_[{device, stream}];
  auto at = pool.lower_bound(size);
  while (at != pool.end() && at->first % unit != 0) ++at;
  Region region{};
  const Window& window = pinned ? pinned_ : device_;
  if (at != pool.end() && at->first <= 2 * size) {
    size = at->first;
    region = at->second;
    pool.erase(at);
  } else {
    size_t& used = pinned ? pinned_used_ : device_used_;
    used = rounded(used, unit);
    if (used + size > window.size()) throw std::bad_alloc();
    region = {window.front() + used, false};
    used += size;
  }
  if (!region.poisoned) std::memset(window.back_of(region.front), kPoison, size);

  auto block = std::make_unique<Allocation>();
  block->front = region.front;
  block->size = size;
  block->requested = requested;
  block->device = device;
  block->stream = stream;
  block->number = ++num_allocations_;
  block->made_after = last_launch();
  block->made_at_depth =
      backtrace(block->made_at.data(), static_cast<int>(std::ssize(block->made_at)));
  std::unique_ptr<Allocation>& place = by_address_[region.front];
  place = std::move(block);
  return *place;
}

void Memory::free(Allocation& block) {
  block.live = false;
  const Window& window = window_of(block);
  const bool large = block.size >= kLarge;
  if (large) {
    window.release(block.front, block.size);
  } else {
    std::memset(window.back_of(block.front), kPoison, block.size);
  }
  pools_[{block.device, block.stream}].emplace(block.size, Region{block.front, !large});
}

Allocation* Memory::find(const void* front) const {
  auto at = by_address_.upper_bound(static_cast<const char*>(front));
  if (at == by_address_.begin()) return nullptr;
  Allocation& block = *std::prev(at)->second;
  return static_cast<const char*>(front) < block.front + block.size ? &block : nullptr;
}

}  // namespace longspan::testing::accelerator
