// Queries of the report about memory.
#pragma once

#include <cstdint>

namespace null_cuda {

/// Returns the peak of a GPU's allocated bytes.
int64_t peak_bytes(int device);

}  // namespace null_cuda
