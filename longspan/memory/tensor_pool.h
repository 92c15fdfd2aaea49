// Memory of tensors on the CPU, used again within the limits of what a step needs anyhow.
#pragma once

#include <cstdint>

namespace c10 {
struct Allocator;
}

namespace longspan {

/// An allocator, for a program to set as that of the CPU (c10::SetCPUAllocator): large tensors then
/// get blocks of a pool of this process. The pool reuses freed blocks for tensors of about that
/// size, so that the system need not hand out and clear pages again and again. Used and free blocks
/// together are never more than were used at once before, so that the resident set is that of the
/// tensors at their fullest moment. The C library's heap, which is shared with everything else,
/// holds more (a sixth, in preference training), because long-lived blocks lie between short-lived
/// ones. It is set before any tensor is made, and before the first AllocationCounter, which no
/// other allocator takes the place of.
c10::Allocator& tensor_pool();

/// Bytes of the pool's blocks: of those in use, of free ones, and the most that were ever in use.
struct PoolBytes {
  int64_t used = 0, free = 0, most_used = 0;
};
PoolBytes pool_bytes();

}  // namespace longspan
