// Attention over the union of two disjoint sets of keys. T: queries, N: heads, H: head dim.
#pragma once

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Adds `part`, the same queries over other keys, to `total`, in place:
/// lse' = log(e^lse + e^lse_b), out' = out sigmoid(lse - lse_b) + out_b sigmoid(lse_b - lse).
/// A query that saw no key has out 0 and lse -inf. total.out_TNH is fp32 (or fp64): rounding to
/// bf16 at every step would add up.
void merge_(AttentionResult& total, const AttentionResult& part);

}  // namespace longspan
