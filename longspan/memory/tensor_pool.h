// An allocator of CPU tensors that reuses memory without a larger peak.
#pragma once

#include <cstdint>

namespace c10 {
struct Allocator;
}

namespace longspan {

/// Returns an allocator to be set as the CPU's allocator (c10::SetCPUAllocator). Tensors of 64 KiB
/// or more get blocks from a pool of this process. The pool gives a tensor a freed block of about
/// its size, or a part of a larger one, which saves the system from mapping and clearing pages
/// again. Used and free blocks together never exceed the peak of the used blocks, so the peak
/// resident set is the peak of the live tensors. The heap of the C library needs more memory (a
/// sixth more in preference training), because long-lived blocks lie between short-lived blocks.
/// Set the allocator before any tensor and the first AllocationCounter exist; no other allocator
/// may replace it later.
c10::Allocator& tensor_pool();

/// Bytes of the pool's blocks: in use, free, and the peak in use.
struct PoolBytes {
  int64_t used = 0, free = 0, most_used = 0;
};
PoolBytes pool_bytes();

}  // namespace longspan
