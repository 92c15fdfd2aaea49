#include "longspan/memory/tensor_pool.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <new>

namespace longspan {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLarge = size_t{64} << 10;  // smaller tensors would waste too much of their pages
constexpr size_t kHuge = size_t{4} << 20;    // from here on huge pages pay

/// Precedes the memory of every tensor; the deleter gets only the address.
struct alignas(64) Header {
  size_t block_bytes;  // 0: from the heap
};
static_assert(sizeof(Header) == 64);

class Pool {
 public:
  Header* take(size_t num_bytes) {
    const size_t wanted = (num_bytes + kPage - 1) / kPage * kPage;
    const std::lock_guard lock(mutex_);
    if (const auto found = by_size_.lower_bound(wanted); found != by_size_.end()) {
      const auto entry = found->second;
      Header* block = entry->block;
      const size_t rest = entry->bytes - wanted;
      free_bytes_ -= entry->bytes;
      oldest_first_.erase(entry);
      by_size_.erase(found);
      // A block up to an eighth larger is given whole. The rest of a larger one stays free.
      if (rest > wanted / 8 && rest >= kLarge) {
        keep(new (reinterpret_cast<std::byte*>(block) + wanted) Header{rest});
        block->block_bytes = wanted;
      }
      add_used(block->block_bytes);
      return block;
    }
    const size_t limit = std::max(most_used_, used_ + wanted);
    while (used_ + free_bytes_ + wanted > limit) drop_oldest();
    void* memory =
        mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      while (!oldest_first_.empty()) drop_oldest();
      memory = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) return nullptr;
    }
    if (wanted >= kHuge) madvise(memory, wanted, MADV_HUGEPAGE);
    add_used(wanted);
    return new (memory) Header{wanted};
  }

  void give_back(Header* block) {
    const std::lock_guard lock(mutex_);
    used_ -= block->block_bytes;
    keep(block);
  }

  PoolBytes bytes() {
    const std::lock_guard lock(mutex_);
    return {static_cast<int64_t>(used_), static_cast<int64_t>(free_bytes_),
            static_cast<int64_t>(most_used_)};
  }

 private:
  struct FreeBlock {
    Header* block;
    size_t bytes;
    std::multimap<size_t, std::list<FreeBlock>::iterator>::iterator place;
  };

  void keep(Header* block) {
    const size_t bytes = block->block_bytes;
    free_bytes_ += bytes;
    const auto entry = oldest_first_.insert(oldest_first_.end(), FreeBlock{block, bytes, {}});
    entry->place = by_size_.emplace(bytes, entry);
  }

  void add_used(size_t bytes) {
    used_ += bytes;
    most_used_ = std::max(most_used_, used_);
  }

  void drop_oldest() {
    const FreeBlock oldest = oldest_first_.front();
    oldest_first_.pop_front();
    by_size_.erase(oldest.place);
    free_bytes_ -= oldest.bytes;
    munmap(oldest.block, oldest.bytes);
  }

  std::mutex mutex_;
  std::list<FreeBlock> oldest_first_;
  std::multimap<size_t, std::list<FreeBlock>::iterator> by_size_;
  size_t used_ = 0, free_bytes_ = 0, most_used_ = 0;
};

Pool& pool() {
  static Pool* pool = new Pool;  // outlives every tensor
  return *pool;
}

void release(void* address) {
  if (address == nullptr) return;
  Header* header = static_cast<Header*>(address) - 1;
  if (header->block_bytes > 0) {
    pool().give_back(header);
  } else {
    ::operator delete(header, std::align_val_t{alignof(Header)});
  }
}

class PoolAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    if (num_bytes == 0) return {nullptr, nullptr, &release, at::kCPU};
    const size_t size = num_bytes + sizeof(Header);
    Header* header = nullptr;
    if (num_bytes >= kLarge) {
      header = pool().take(size);
    } else if (void* memory =
                   ::operator new(size, std::align_val_t{alignof(Header)}, std::nothrow)) {
      header = new (memory) Header{0};
    }
    TORCH_CHECK_WITH(OutOfMemoryError, header != nullptr, "not enough memory for a tensor of ",
                     num_bytes, " bytes");
    void* address = header + 1;
    return {address, address, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t num_bytes) const override {
    std::memcpy(target, source, num_bytes);
  }
};

}  // namespace

c10::Allocator& tensor_pool() {
  static PoolAllocator* allocator = new PoolAllocator;  // outlives every tensor
  return *allocator;
}

PoolBytes pool_bytes() { return pool().bytes(); }

}  // namespace longspan
