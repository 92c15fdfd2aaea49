// Rows that go to some of several experts: counted, gathered, scattered, weighed. On the CPU loops
// of their own, elsewhere ATen's operators. C: rows, R: those of one expert, D: their width, E:
// experts, K: those of a row.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

/// How many rows go to each expert, int64, [E], for which no host waits. `counts_C` (bool): those
/// that count; undefined: all.
at::Tensor rows_by_expert(const at::Tensor& experts_CK, int64_t num_experts,
                          const at::Tensor& counts_C = {});

/// out[rows_R[r]] += weights_R[r] * x_RD[r], with rows that are all different (int64). Adds in the
/// dtype of out, fp32 or fp64, to which x (fp32, bf16 or fp64) and weights (fp32 or fp64) are cast.
/// Undefined weights are ones.
void add_weighted_rows_(at::Tensor& out_CD, const at::Tensor& rows_R, const at::Tensor& x_RD,
                        const at::Tensor& weights_R);

/// The dot products of rows, [R], in fp32 (fp64 for fp64).
at::Tensor row_dots(const at::Tensor& a_RD, const at::Tensor& b_RD);

}  // namespace longspan
