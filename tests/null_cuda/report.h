// What the report asks of the memory.
#pragma once

#include <cstdint>

namespace null_cuda {

/// The most bytes of a GPU that were taken at once.
int64_t peak_bytes(int device);

}  // namespace null_cuda
