// Merges attention over two disjoint sets of keys. T: queries, N: heads, H: head dim.
#pragma once

#include "longspan/attention/block_kernel.h"

namespace longspan {

/// Merges `part` (the same queries over other keys) into `total` in place:
///   lse' = log(e^lse + e^lse_b), out' = out sigmoid(lse - lse_b) + out_b sigmoid(lse_b - lse).
/// A query that saw no key has out 0 and lse -inf. total.out_TNH must be fp32 or fp64, because
/// rounding errors of bf16 would accumulate over merges.
void merge_(AttentionResult& total, const AttentionResult& part);

}  // namespace longspan
