// Checks of cuBLAS and cuBLASLt before a gemm.
#pragma once

#include <cuda_runtime_api.h>
#include <library_types.h>

#include <initializer_list>
#include <string>

#include "core.h"

namespace null_cuda {

/// Columns of `rows` elements with a distance of `step` elements. Several matrices are `batch_step`
/// apart.
struct Matrix {
  const void* address = nullptr;
  cudaDataType type = CUDA_R_32F;
  int64_t step = 0;
  int64_t number = 1;
  int64_t batch_step = 0;
  int64_t rows = 0, columns = 0;
};

inline int64_t bytes_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
      return 4;
    default:
      return 1;
  }
}

/// Suffix of the name of a gemm that rounds fp32 to TF32.
inline constexpr const char* kInTf32 = " in TF32";

/// Counts a gemm of `flops` operations. Prints an error and returns false if a matrix is outside
/// GPU memory, or if columns overlap.
inline bool start_gemm(const std::string& name, int64_t flops,
                       std::initializer_list<Matrix> matrices) {
  count(Counted::kLaunches, name);
  count(Counted::kGemmFlops, name, flops);
  for (const Matrix& matrix : matrices) {
    if (matrix.rows <= 0 || matrix.columns <= 0 || matrix.number <= 0) continue;
    const int64_t numbers =
        (matrix.number - 1) * matrix.batch_step + (matrix.columns - 1) * matrix.step + matrix.rows;
    if (matrix.step < matrix.rows || !is_memory(matrix.address, numbers * bytes_of(matrix.type))) {
      complain(name + " is given a matrix of " + std::to_string(matrix.rows) + " x " +
               std::to_string(matrix.columns) + " that is not in the memory of a GPU");
      return false;
    }
  }
  return true;
}

}  // namespace null_cuda
