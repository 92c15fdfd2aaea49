#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "core.h"
#include "report.h"
#include "values.h"

namespace null_cuda {
namespace {

constexpr int64_t kContextBytes = int64_t{512} << 20;  // memory of a context on an H100

struct Range {
  size_t size = 0;
  int device = 0;
  uint64_t memory = 0;  // from create_memory; 0: from allocate
};

struct Created {
  size_t size = 0;
  int device = 0;
  int uses = 1;  // references: its creator, and each mapping
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Range> ranges;
  std::map<uint64_t, Created> created;
  std::map<uintptr_t, size_t> pinned;
  uint64_t num_created = 0;
  std::vector<int64_t> taken, peak;

  Memory() : taken(settings().num_devices, kContextBytes), peak(taken) {}

  static Memory& get() {
    static auto* const memory = new Memory;
    return *memory;
  }

  bool take(int device, size_t size) {
    if (taken[device] + static_cast<int64_t>(size) > settings().memory) return false;
    taken[device] += static_cast<int64_t>(size);
    peak[device] = std::max(peak[device], taken[device]);
    return true;
  }

  /// Returns the range that contains this address.
  std::map<uintptr_t, Range>::iterator find(uintptr_t address) {
    auto range = ranges.upper_bound(address);
    if (range == ranges.begin()) return ranges.end();
    --range;
    return address < range->first + range->second.size ? range : ranges.end();
  }

  void release(uint64_t number) {
    const auto known = created.find(number);
    if (known == created.end() || --known->second.uses > 0) return;
    taken[known->second.device] -= static_cast<int64_t>(known->second.size);
    created.erase(known);
  }
};

uintptr_t addresses(size_t size) {
  void* const made = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          /*fd=*/-1, /*offset=*/0);
  return made == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(made);
}

uintptr_t number_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

uintptr_t allocate(int device, size_t size) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  size = (std::max<size_t>(size, 1) + 511) / 512 * 512;
  if (!memory.take(device, size)) return 0;
  const uintptr_t address = addresses(size);
  memory.ranges[address] = {size, device, 0};
  return address;
}

bool free_memory(uintptr_t address) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  const auto range = memory.ranges.find(address);
  if (range == memory.ranges.end() || range->second.memory != 0) return false;
  memory.taken[range->second.device] -= static_cast<int64_t>(range->second.size);
  munmap(reinterpret_cast<void*>(address), range->second.size);
  memory.ranges.erase(range);
  return true;
}

uintptr_t reserve_addresses(size_t size, size_t alignment) {
  alignment = std::max<size_t>(alignment, size_t{2} << 20);
  const uintptr_t begin = addresses(size + alignment);
  if (begin == 0) return 0;
  const uintptr_t aligned = (begin + alignment - 1) / alignment * alignment;
  if (aligned > begin) munmap(reinterpret_cast<void*>(begin), aligned - begin);
  if (const size_t rest = begin + alignment - aligned; rest > 0) {
    munmap(reinterpret_cast<void*>(aligned + size), rest);
  }
  return aligned;
}

bool free_addresses(uintptr_t address, size_t size) {
  return munmap(reinterpret_cast<void*>(address), size) == 0;
}

uint64_t create_memory(int device, size_t size) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  if (!memory.take(device, size)) return 0;
  memory.created[++memory.num_created] = {size, device, 1};
  return memory.num_created;
}

bool release_memory(uint64_t number) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  if (!memory.created.contains(number)) return false;
  memory.release(number);
  return true;
}

bool retain_memory(uintptr_t address, uint64_t* number) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  const auto range = memory.find(address);
  if (range == memory.ranges.end() || range->second.memory == 0) return false;
  *number = range->second.memory;
  ++memory.created[*number].uses;
  return true;
}

bool map_memory(uintptr_t address, size_t size, uint64_t number) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  const auto known = memory.created.find(number);
  if (known == memory.created.end() || size > known->second.size ||
      memory.find(address) != memory.ranges.end()) {
    return false;
  }
  ++known->second.uses;
  memory.ranges[address] = {size, known->second.device, number};
  return true;
}

bool unmap_memory(uintptr_t address, size_t size) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  for (auto range = memory.ranges.find(address); size > 0;) {
    if (range == memory.ranges.end() || range->second.memory == 0 || range->second.size > size) {
      return false;
    }
    size -= range->second.size;
    memory.release(range->second.memory);
    range = memory.ranges.erase(range);
  }
  return true;
}

int64_t free_bytes(int device) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  return settings().memory - memory.taken[device];
}

int64_t peak_bytes(int device) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  return memory.peak[device];
}

int device_of(const void* address) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  const auto range = memory.find(number_of(address));
  return range == memory.ranges.end() ? -1 : range->second.device;
}

bool is_memory(const void* address, size_t size) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  const uintptr_t end = number_of(address) + size;
  for (auto range = memory.find(number_of(address)); range != memory.ranges.end();) {
    const uintptr_t reached = range->first + range->second.size;
    if (reached >= end) return true;
    ++range;
    if (range == memory.ranges.end() || range->first != reached) return false;
  }
  return false;
}

bool extent_of(uintptr_t address, uintptr_t* begin, size_t* size) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  const auto range = memory.find(address);
  if (range == memory.ranges.end()) return false;
  *begin = range->first;
  *size = range->second.size;
  return true;
}

void* allocate_pinned(size_t size) {
  void* address = nullptr;
  if (posix_memalign(&address, 4096, std::max<size_t>(size, 1)) != 0) return nullptr;
  register_pinned(address, size);
  return address;
}

bool free_pinned(void* address) {
  if (!unregister_pinned(address)) return false;
  std::free(address);
  return true;
}

void register_pinned(void* address, size_t size) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  memory.pinned[number_of(address)] = size;
}

bool unregister_pinned(void* address) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  return memory.pinned.erase(number_of(address)) > 0;
}

bool is_pinned(const void* address) {
  Memory& memory = Memory::get();
  const std::lock_guard lock(memory.mutex);
  const auto next = memory.pinned.upper_bound(number_of(address));
  if (next == memory.pinned.begin()) return false;
  const auto range = std::prev(next);
  return number_of(address) < range->first + range->second;
}

bool copy(void* to, const void* from, size_t size, const char** direction) {
  const bool to_gpu = device_of(to) >= 0, from_gpu = device_of(from) >= 0;
  const char* const name =
      to_gpu ? (from_gpu ? "between GPUs" : "to GPUs") : (from_gpu ? "to the host" : "of the host");
  if (direction != nullptr) *direction = name;
  if ((to_gpu && !is_memory(to, size)) || (from_gpu && !is_memory(from, size))) return false;
  if (from_gpu && !to_gpu) {
    fetch(number_of(from), to, size);
  } else if (!to_gpu) {
    std::memmove(to, from, size);
  } else if (!from_gpu) {
    keep(number_of(to), from, size);
  } else if (size <= kMostSent) {
    std::vector<unsigned char> bytes(size);
    fetch_for_collective(number_of(from), bytes.data(), size);
    keep(number_of(to), bytes.data(), size);
  } else {
    forget(number_of(to), size);
  }
  count(Counted::kBytes, name, static_cast<int64_t>(size));
  return true;
}

}  // namespace null_cuda
