// Shared parts of the CUDA runtime's files.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace null_cuda {

/// Stores the error for cudaGetLastError, and returns it.
cudaError_t failed(cudaError_t error);

/// Returns the demangled C++ name.
std::string readable(const char* symbol);

}  // namespace null_cuda
