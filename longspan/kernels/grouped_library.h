// at::_grouped_mm in the place of Longspan's kernel (grouped_gemm.h), for single products of rows
// with bf16 matrices that lie side by side. Both sum in fp32 and round once, in different orders.
// S: rows of all experts, E: experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "longspan/kernels/grouped_gemm.h"
#include "longspan/spec/expert_gemms.h"

namespace longspan::grouped {

/// From here on, at::_grouped_mm computes these gemms, and no others, in all threads of the
/// process. While a GPU must give the same bits each time (GpuNumbers::deterministic), it computes
/// none.
void let_library_multiply(std::vector<ExpertGemm> gemms);
bool library_multiplies(const ExpertGemm& gemm);

/// y[to_S[row]] = x[row] times the matrix of the row's expert, by at::_grouped_mm. Processes the
/// rows in pieces, so that copies of rows take at most `room` bytes. matrices: side_by_side.
void multiply_by_library(at::Tensor& y, const at::Tensor& to_S, const SortedRows& sorted,
                         const GroupedOperands& operands, bool transposed,
                         int64_t room = kLibraryBytes);

/// Milliseconds of a gemm.
struct GemmTimes {
  /// All experts have equally many rows, or one has half of all rows.
  struct OfRows {
    double even = 0, skewed = 0;
  };
  OfRows own, library;
  /// A tie goes to the kernel, which needs no copies.
  bool library_wins() const {
    return library.even < 0.95 * own.even && library.skewed < 0.95 * own.skewed;
  }
};

/// Measures the gemm on this GPU, with its num_rows and all its experts. Frees its memory. Throws
/// as ATen.
GemmTimes time_gemm(const UsedGemm& used, at::Device device);

}  // namespace longspan::grouped
