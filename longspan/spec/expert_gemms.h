// Gemms of experts that a library's grouped gemm may compute instead of Longspan's kernel
// (kernels/grouped_library.h). No torch.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace longspan {

struct ModelSpec;

/// Rows sorted by expert, each times the matrix of its expert, [columns, depth], or [depth,
/// columns] if `transposed`.
struct ExpertGemm {
  int64_t num_experts, depth, columns;
  bool transposed;
  auto operator<=>(const ExpertGemm&) const = default;
};

/// A gemm as a model uses it.
struct UsedGemm {
  ExpertGemm gemm;
  int64_t num_rows;     ///< of all experts, in the largest chunk, at most kMostMeasuredRows
  bool picked, placed;  ///< rows are gathered from other places, or go to other places
};

/// Returns the different gemms of one product without a bias: in the forward and in the gradient of
/// the inputs, on a rank that holds one part of the experts. `num_tokens`: of the rank's part of a
/// row.
std::vector<UsedGemm> gemms_of_experts(const ModelSpec& model, int64_t expert_parallel_size,
                                       int64_t num_tokens);

/// Rows of a measured gemm at most, which bound the memory of a measurement. More rows repeat the
/// same tiles.
inline constexpr int64_t kMostMeasuredRows = int64_t{1} << 18;

/// Bytes of rows that a library's grouped gemm of one piece of the rows copies.
inline constexpr int64_t kLibraryBytes = int64_t{32} << 20;

/// Whether at::_grouped_mm has kernels for this compute capability (90 for 9.0). On other GPUs it
/// computes one expert after the other, and the host waits.
constexpr bool library_groups_gemms(int capability) {
  return capability / 10 == 9 || capability / 10 == 10;
}

}  // namespace longspan
