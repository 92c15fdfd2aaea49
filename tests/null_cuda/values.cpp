#include "values.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "core.h"

namespace null_cuda {
namespace {

struct Value {
  std::vector<unsigned char> bytes;
  bool comes_back = true;  // to the host
  std::function<void(unsigned char*)> finish = {};
};

void fill_counts(void* bytes) {
  const auto& [size, numbers] = settings().counts;
  std::memcpy(bytes, numbers.data(), std::min(size, numbers.size() * sizeof(int64_t)));
}

struct Values {
  std::mutex mutex;
  std::map<uintptr_t, Value> at;

  static Values& get() {
    static auto* const values = new Values;
    return *values;
  }
  std::map<uintptr_t, Value>::iterator first_behind(uintptr_t address) {
    auto value = at.lower_bound(address);
    if (value != at.begin()) {
      const auto before = std::prev(value);
      if (before->first + before->second.bytes.size() > address) return before;
    }
    return value;
  }
  void fetch(uintptr_t address, void* bytes, size_t size, bool for_host) {
    const std::lock_guard lock(mutex);
    std::memset(bytes, 0, size);
    if (for_host && size == settings().counts.bytes) fill_counts(bytes);
    for (auto known = first_behind(address); known != at.end() && known->first < address + size;) {
      Value& value = known->second;
      if (for_host && !value.comes_back) {
        ++known;
        continue;
      }
      if (value.finish) value.finish(value.bytes.data());
      value.finish = {};
      const uintptr_t begin = std::max(address, known->first);
      const uintptr_t end = std::min(address + size, known->first + value.bytes.size());
      std::memcpy(static_cast<unsigned char*>(bytes) + (begin - address),
                  value.bytes.data() + (begin - known->first), end - begin);
      // Large values are returned once, since later unknown writes may replace them.
      const bool once = for_host && value.bytes.size() > kMostKept;
      known = once ? at.erase(known) : std::next(known);
    }
  }
  void forget(uintptr_t address, size_t size) {
    for (auto value = first_behind(address); value != at.end() && value->first < address + size;) {
      value = at.erase(value);
    }
  }
};

}  // namespace

void keep(uintptr_t address, const void* bytes, size_t size) {
  Values& values = Values::get();
  const std::lock_guard lock(values.mutex);
  values.forget(address, size);
  if (size == 0 || size > kMostSent) return;
  const auto* const begin = static_cast<const unsigned char*>(bytes);
  values.at[address] = {{begin, begin + size}, size <= kMostKept};
}

void forget(uintptr_t address, size_t size) {
  Values& values = Values::get();
  const std::lock_guard lock(values.mutex);
  values.forget(address, size);
}

void fetch(uintptr_t address, void* bytes, size_t size) {
  Values::get().fetch(address, bytes, size, /*for_host=*/true);
}

void fetch_for_collective(uintptr_t address, void* bytes, size_t size) {
  Values::get().fetch(address, bytes, size, /*for_host=*/false);
}

void keep_result(uintptr_t address, size_t size, std::function<void(unsigned char*)> finish) {
  Values& values = Values::get();
  const std::lock_guard lock(values.mutex);
  values.forget(address, size);
  values.at[address] = {std::vector<unsigned char>(size), true, std::move(finish)};
}

}  // namespace null_cuda
