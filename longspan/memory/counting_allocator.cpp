#include "longspan/memory/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace longspan {

struct AllocationCounter::Count {
  std::atomic<int64_t> live{0}, peak{0};
  std::shared_ptr<Count> outer;  // a nested counter also counts for the counters around it

  void add(int64_t num_bytes) {
    const int64_t now = live.fetch_add(num_bytes) + num_bytes;
    int64_t known = peak.load();
    while (known < now && !peak.compare_exchange_weak(known, now)) {
    }
    if (outer) outer->add(num_bytes);
  }
};

namespace {

using Count = AllocationCounter::Count;

thread_local std::shared_ptr<Count> of_this_thread;

struct ProcessCount {
  std::mutex mutex;
  std::shared_ptr<Count> count;

  std::shared_ptr<Count> get() {
    const std::lock_guard lock(mutex);
    return count;
  }
};
ProcessCount& of_process() {
  static ProcessCount process;
  return process;
}

// The counters that count a tensor's memory.
struct Counted {
  int64_t num_bytes;
  std::shared_ptr<Count> thread, process;

  void add(int sign) const {
    if (thread) thread->add(sign * num_bytes);
    if (process) process->add(sign * num_bytes);
  }
};

// Keyed by address: the context of a DataPtr must be the memory itself, since libraries use it raw.
struct Table {
  std::mutex mutex;
  std::unordered_map<void*, Counted> entries;
  c10::DeleterFnPtr free_plain = nullptr;

  void forget(void* address) {
    const std::lock_guard lock(mutex);
    const auto found = entries.find(address);
    if (found == entries.end()) return;
    found->second.add(-1);
    entries.erase(found);
  }
};
Table& table() {
  static Table* table = new Table;  // outlives every tensor
  return *table;
}

void release_counted(void* address) {
  table().forget(address);
  table().free_plain(address);
}

class CountingAllocator : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* inner) : inner_(inner) {
    table().free_plain = inner->raw_deleter();
  }

  c10::DataPtr allocate(size_t num_bytes) override {
    c10::DataPtr memory = inner_->allocate(num_bytes);
    void* address = memory.get();
    std::shared_ptr<Count> process = of_process().get();
    const bool simple = table().free_plain != nullptr && memory.get_context() == address;
    if (address == nullptr || !simple || (!of_this_thread && !process)) return memory;
    table().forget(address);  // freed behind our back, by a deleter that predates us
    const Counted counted{static_cast<int64_t>(num_bytes), of_this_thread, std::move(process)};
    counted.add(+1);
    {
      const std::lock_guard lock(table().mutex);
      table().entries.insert_or_assign(address, counted);
    }
    const c10::Device device = memory.device();
    memory.release_context();
    return {address, address, &release_counted, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release_counted; }

  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    inner_->copy_data(target, source, num_bytes);
  }

 private:
  c10::Allocator* inner_;
};

// Installs the counting allocator with the first counter and removes it with the last.
void install(int change) {
  static std::mutex mutex;
  static int num_users = 0;
  static c10::Allocator* plain = nullptr;
  static CountingAllocator* counting = nullptr;
  const std::lock_guard lock(mutex);
  if (num_users == 0) {
    plain = c10::GetCPUAllocator();
    // Kept forever: another thread may have just fetched it.
    if (!counting) counting = new CountingAllocator(plain);
  }
  num_users += change;
  // The highest priority; torch ignores a priority lower than the last.
  c10::SetCPUAllocator(num_users > 0 ? counting : plain, /*priority=*/255);
}

}  // namespace

AllocationCounter::AllocationCounter(Of whom) : whom_(whom), count_(std::make_shared<Count>()) {
  if (whom_ == Of::kThisThread) {
    previous_ = count_->outer = of_this_thread;
    of_this_thread = count_;
  } else {
    const std::lock_guard lock(of_process().mutex);
    previous_ = count_->outer = of_process().count;
    of_process().count = count_;
  }
  install(+1);
}

AllocationCounter::~AllocationCounter() {
  install(-1);
  if (whom_ == Of::kThisThread) {
    of_this_thread = previous_;
  } else {
    const std::lock_guard lock(of_process().mutex);
    of_process().count = previous_;
  }
}

int64_t AllocationCounter::live_bytes() const { return count_->live.load(); }
int64_t AllocationCounter::peak_bytes() const { return count_->peak.load(); }
void AllocationCounter::restart_peak() { count_->peak.store(count_->live.load()); }

}  // namespace longspan
