// What the files of the CUDA runtime share.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace null_cuda {

/// Keeps the error for cudaGetLastError, and returns it.
cudaError_t failed(cudaError_t error);

/// A C++ name as people write it.
std::string readable(const char* symbol);

}  // namespace null_cuda
