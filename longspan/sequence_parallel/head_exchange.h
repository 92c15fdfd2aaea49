// Tokens for heads, and back: the outer half of every method.
// t: this rank's tokens, T = P t: tokens of the group, N: heads in all, n: heads here, H: head dim.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Consecutive heads.
struct HeadRange {
  int64_t begin, count;
};

/// Who computes which heads. Query heads are split evenly; a kv head belongs to every rank that has
/// a query head of its group (so ranges may overlap where kv heads are fewer than ranks, and differ
/// in length).
struct HeadSplit {
  std::vector<HeadRange> query;  // by rank
  std::vector<HeadRange> kv;     // by rank
  /// For each query head of `rank` the place of its kv head in kv[rank].
  std::vector<int64_t> kv_place(int rank) const;
  int64_t group_size;  // query heads of a kv head

  HeadSplit(int num_ranks, int64_t num_heads, int64_t num_kv_heads);
};

/// Each x_tNH, cut by its own ranges -> [T, heads of this rank, H]. Differentiable: the gradients
/// of a head that went to several ranks are summed (in fp32 for bf16). All tensors are in flight
/// together.
std::vector<at::Tensor> tokens_to_heads(const std::vector<at::Tensor>& tensors,
                                        const std::vector<std::vector<HeadRange>>& ranges,
                                        const Group& group);

/// x_TnH -> [t, N, H]; ranges cover the N heads once. Differentiable.
at::Tensor heads_to_tokens(const at::Tensor& x_TnH, const std::vector<HeadRange>& ranges,
                           const Group& group);

}  // namespace longspan
