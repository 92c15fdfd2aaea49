#include "longspan/memory/tensor_pool.h"

#include <c10/core/Allocator.h>
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace longspan {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct Block {
  c10::DataPtr memory;
  size_t size;
  unsigned char mark;

  bool is_whole() const {
    const auto* bytes = static_cast<const unsigned char*>(memory.get());
    return bytes[0] == mark && bytes[size / 2] == mark && bytes[size - 1] == mark;
  }
};

Block take(size_t size, unsigned char mark) {
  Block block{tensor_pool().allocate(size), size, mark};
  std::memset(block.memory.get(), mark, size);
  return block;
}

TEST_CASE("tensor pool: blocks are one's own and aligned, freed ones are used again") {
  for (const size_t size : {size_t{1}, size_t{100}, kMiB - 1, kMiB, 5 * kMiB + 3}) {
    const Block block = take(size, 7);
    CHECK(reinterpret_cast<uintptr_t>(block.memory.get()) % 64 == 0);
    CHECK(block.is_whole());
  }
  CHECK(tensor_pool().allocate(0).get() == nullptr);
  void* first = nullptr;
  {
    const Block block = take(9 * kMiB, 1);
    first = block.memory.get();
  }
  CHECK(take(9 * kMiB - 5000, 2).memory.get() == first);  // about as large: reused
  const int64_t kept = pool_bytes().free;
  const Block part = take(5 * kMiB, 2);
  CHECK(part.memory.get() == first);  // a part of it: the rest stays free
  CHECK(kept - pool_bytes().free == pool_bytes().used);
  CHECK(pool_bytes().used < static_cast<int64_t>(6 * kMiB));
  const Block rest = take(3 * kMiB, 3);
  CHECK(rest.memory.get() > first);
  CHECK(rest.memory.get() < static_cast<std::byte*>(first) + 9 * kMiB);
  CHECK(part.is_whole());
  void* raw = tensor_pool().raw_allocate(2 * kMiB);
  std::memset(raw, 3, 2 * kMiB);
  tensor_pool().raw_deallocate(raw);
}

TEST_CASE("tensor pool: used and kept together are never more than were used at once") {
  const auto work = [](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Block> blocks;
    bool whole = true, within = true;
    for (int i = 0; i < 300; ++i) {
      if (blocks.size() > 6 || (!blocks.empty() && random() % 2 == 0)) {
        const size_t which = random() % blocks.size();
        whole = whole && blocks[which].is_whole();
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
      }
      blocks.push_back(
          take(kMiB / 2 + random() % (4 * kMiB), static_cast<unsigned char>(random())));
      const PoolBytes bytes = pool_bytes();
      within = within && bytes.used + bytes.free <= bytes.most_used;
    }
    return whole && within;
  };
  CHECK(work(1));
  bool other_well = false;
  std::thread other([&] { other_well = work(2); });
  CHECK(work(3));
  other.join();
  CHECK(other_well);
  const PoolBytes bytes = pool_bytes();
  CHECK(bytes.used == 0);
  CHECK(bytes.free > 0);
}

}  // namespace
}  // namespace longspan
