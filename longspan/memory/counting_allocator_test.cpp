#include "longspan/memory/counting_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <doctest/doctest.h>

#include <optional>
#include <thread>

namespace longspan {
namespace {

using Of = AllocationCounter::Of;
constexpr int64_t kFloats = 1000;  // elements of a tensor here
constexpr int64_t kBytes = 4 * kFloats;

at::Tensor make() { return at::empty({kFloats}, at::kFloat); }

}  // namespace

TEST_CASE("allocation counter: live bytes and the peak between marks") {
  const at::Tensor before = make();
  for (const Of whom : {Of::kThisThread, Of::kProcess}) {
    AllocationCounter counter(whom);
    at::Tensor a = make();
    CHECK(counter.live_bytes() == kBytes);
    {
      const at::Tensor b = make(), view = b.view({10, 100}).t();
      CHECK(counter.live_bytes() == 2 * kBytes);
    }
    CHECK(counter.live_bytes() == kBytes);
    CHECK(counter.peak_bytes() == 2 * kBytes);
    counter.restart_peak();
    CHECK(counter.peak_bytes() == kBytes);
    // The sum is freed after the product.
    a = (a + a) * a;
    CHECK(counter.peak_bytes() == 3 * kBytes);
    a.resize_({2 * kFloats});
    CHECK(counter.live_bytes() == 2 * kBytes);
    a = at::Tensor();
    CHECK(counter.live_bytes() == 0);
  }
}

TEST_CASE("allocation counter: a thread's own, wherever it is freed, and everyone's") {
  AllocationCounter process(Of::kProcess);
  AllocationCounter here(Of::kThisThread);
  at::Tensor theirs, ours = make();
  int64_t live_there = -1;
  std::thread([&] {
    AllocationCounter there(Of::kThisThread);
    theirs = make();
    ours = at::Tensor();
    live_there = there.live_bytes();
  }).join();
  CHECK(live_there == kBytes);
  CHECK(here.live_bytes() == 0);
  CHECK(here.peak_bytes() == kBytes);
  CHECK(process.live_bytes() == kBytes);
  CHECK(process.peak_bytes() == 2 * kBytes);
  theirs = at::Tensor();  // its counter is gone
  CHECK(process.live_bytes() == 0);
}

TEST_CASE("allocation counter: nested, and gone without a trace") {
  c10::Allocator* plain = c10::GetCPUAllocator();
  at::Tensor kept;
  {
    AllocationCounter outer(Of::kThisThread);
    {
      AllocationCounter inner(Of::kThisThread);
      kept = make();
      CHECK(inner.live_bytes() == kBytes);
    }
    CHECK(outer.live_bytes() == kBytes);
    CHECK(c10::GetCPUAllocator() != plain);
  }
  CHECK(c10::GetCPUAllocator() == plain);
  kept.zero_();
}

TEST_CASE("allocation counter: raw memory, which libraries ask for, and across its ends") {
  c10::Allocator* plain = c10::GetCPUAllocator();
  void* before = plain->raw_allocate(kBytes);
  void* inside = nullptr;
  {
    AllocationCounter counter(Of::kThisThread);
    c10::Allocator* counting = c10::GetCPUAllocator();
    void* raw = counting->raw_allocate(kBytes);
    CHECK(counter.live_bytes() == kBytes);
    counting->raw_deallocate(raw);
    CHECK(counter.live_bytes() == 0);
    counting->raw_deallocate(before);
    CHECK(counter.live_bytes() == 0);
    inside = counting->raw_allocate(kBytes);
  }
  plain->raw_deallocate(inside);
}

}  // namespace longspan
