// The memory of the devices, and the pinned memory of the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "longspan/testing/accelerator/clock.h"
#include "longspan/testing/accelerator/window.h"

namespace longspan::testing::accelerator {

inline constexpr int kPinned = -1;  // instead of a device's number

/// A live or freed allocation.
struct Allocation {
  char* front = nullptr;
  size_t size = 0;       // of the memory
  size_t requested = 0;  // requested bytes
  int device = 0;        // or kPinned
  int stream = 0;        // the stream of the allocation; freed memory returns to this stream's pool
  uint64_t number = 0;   // allocations are numbered over all devices
  bool live = true;
  std::string made_after;  // the thread's last launch before the allocation
  std::array<void*, 12> made_at{};
  int made_at_depth = 0;
  AccessHistory history;
  std::vector<int> told_of;  // streams of record_stream

  /// For example "allocation 7 (64 bytes, made on device 0 after mul.out)".
  std::string text() const;
};

/// Allocates like torch's caching allocators: freed memory goes to the pool of the stream of its
/// allocation, and the next allocation on that stream may reuse it at once. Not thread-safe.
class Memory {
 public:
  Memory();

  /// Fills the memory with 0xff, so that floating-point values are NaN and integers -1. `device`
  /// may be kPinned.
  Allocation& allocate(size_t size, int device, int stream);
  /// Fills the memory with 0xff, so that a read through a stale address gives 0xff.
  void free(Allocation& block);
  /// Returns the present or last allocation at this front address; null if there was none.
  Allocation* find(const void* front) const;

  const Window& window_of(const Allocation& block) const {
    return block.device == kPinned ? pinned_ : device_;
  }
  const Window& window_of_pinned() const { return pinned_; }
  /// True for device memory, allocated or not.
  bool is_of_device(const void* front) const { return device_.holds(front); }
  bool is_pinned(const void* front) const { return pinned_.holds(front); }

 private:
  struct Region {
    char* front;
    bool poisoned;
  };
  using Pool = std::multimap<size_t, Region>;

  Window device_, pinned_;
  size_t device_used_ = 0, pinned_used_ = 0;
  uint64_t num_allocations_ = 0;
  std::map<std::pair<int, int>, Pool> pools_;                      // by device and stream
  std::map<const char*, std::unique_ptr<Allocation>> by_address_;  // of the front
};

/// The name of this thread's previous launch; empty: none.
std::string& last_launch();

}  // namespace longspan::testing::accelerator
