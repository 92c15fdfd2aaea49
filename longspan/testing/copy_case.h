// The argument of the kernel of copy_kernels.cuh.
#pragma once

namespace longspan::testing {

/// A mistake of a kernel that copies asynchronously.
enum class CopyFault { kNone, kNoWait, kNewestGroup, kNoBarrier, kOneBank };

struct CopyCase {
  const void* from;  // 16 bytes for each thread
  float* to;         // [threads]
  int missing;       // the thread that copies zeros
  CopyFault fault;
};

}  // namespace longspan::testing
