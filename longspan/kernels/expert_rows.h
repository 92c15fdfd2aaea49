// Counts, scatters and multiplies rows that go to several experts: by loops on the CPU, by ATen's
// operators elsewhere. C: rows, R: rows of one expert, D: numbers of a row, E: experts, K: experts
// of a row.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

/// Returns the number of rows for each expert, int64 [E], without blocking the host. `counts_C`
/// (bool): the rows to count; undefined: all.
at::Tensor rows_by_expert(const at::Tensor& experts_CK, int64_t num_experts,
                          const at::Tensor& counts_C = {});

/// out[rows_R[r]] += weights_R[r] * x_RD[r], for distinct rows (int64). Adds in the dtype of out,
/// fp32 or fp64, to which x (fp32, bf16 or fp64) and weights (fp32 or fp64) are cast. Undefined
/// weights are 1.
void add_weighted_rows_(at::Tensor& out_CD, const at::Tensor& rows_R, const at::Tensor& x_RD,
                        const at::Tensor& weights_R);

/// Returns the dot products of rows, [R], in fp32 (fp64 for fp64).
at::Tensor row_dots(const at::Tensor& a_RD, const at::Tensor& b_RD);

}  // namespace longspan
