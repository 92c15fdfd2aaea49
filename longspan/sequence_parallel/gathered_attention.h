// Attention of Llama 3's context parallelism: keys and values, or their latents, are all-gathered.
// The comment in llama3.cpp lists the bytes sent. T: tokens of the row, N: query heads, M: kv
// heads, H: elements of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/attention/block_kernel.h"
#include "longspan/comm/group.h"
#include "longspan/sequence_parallel/sequence_parallel.h"

namespace longspan {

/// kv heads that one all-gather gathers, and the query heads that use these kv heads.
struct GatheredHeads {
  int64_t kv_begin, num_kv, query_begin, num_queries;

  at::Tensor queries(const at::Tensor& x_tNH) const {
    return x_tNH.narrow(1, query_begin, num_queries);
  }
  at::Tensor keys(const at::Tensor& x_tMH) const { return x_tMH.narrow(1, kv_begin, num_kv); }
  at::Tensor lse(const at::Tensor& x_Nt) const { return x_Nt.narrow(0, query_begin, num_queries); }
};

/// Returns the waves: groups of kv heads that are gathered together, for R ranks. An all-gather of
/// M / R heads is as large as a rank's share of all M heads, so the buffers of a wave do not grow
/// with R up to R = M. For R > M a wave is one whole head, R / M times as large as a rank's share.
std::vector<GatheredHeads> gathered_waves(int64_t num_heads, int64_t num_kv_heads, int num_ranks);

/// Returns the visible blocks between a rank's queries and the keys of the whole row. The keys are
/// in row order. The rank holds its tokens in zigzag order.
std::vector<Block> blocks_of_row(const Packing& padded, int rank, int num_ranks);

/// True if latents are gathered instead of keys and values.
bool gathers_latents(const AttentionSpec& spec);

std::unique_ptr<SequenceParallel> make_gathered_attention(Group group, const BlockKernel& kernel);

}  // namespace longspan
