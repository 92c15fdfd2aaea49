// Zigzag order gives every rank the same causal work. Each document is cut into 2R chunks for R
// ranks, and rank r holds chunks r and 2R-1-r, in this order. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/rows/token_order.h"
#include "longspan/sequence_parallel/ring_layout.h"

namespace longspan {

/// Returns the zigzag order. Pads each document to a multiple of 2R tokens. Then pads the row, by a
/// document of padding, until each rank's share is a multiple of `multiple`.
TokenOrder zigzag_order(const Packing& packing, int64_t multiple, int rank, int num_ranks);

/// Returns the place in the padded row of each local token of `rank`.
std::vector<int64_t> zigzag_places(const Packing& padded, int rank, int num_ranks);

/// Returns the same places as runs with constant steps.
Positions zigzag_runs(const Packing& padded, int rank, int num_ranks);

/// Returns the number of local tokens of `rank` before `token` of the padded row.
int64_t zigzag_tokens_before(const Packing& padded, int64_t token, int rank, int num_ranks);

/// Returns the blocks between the queries of `rank` and the visible keys of `owner`. Indices are
/// local tokens of `rank` and of `owner`. Forks are ignored. In every step 50 % of the pairs are
/// visible.
std::vector<Block> zigzag_blocks(const Packing& padded, int rank, int owner, int num_ranks);

/// Returns the zigzag order as a RingLayout. `name`: the method, for messages.
RingLayout zigzag_layout(const char* name);

/// Method::geometry and Method::token_order of a zigzag ring inside Ulysses, with the plan's
/// degrees.
RankGeometry zigzag_geometry(const ParallelPlan& plan, const AttentionShape& shape,
                             const Packing& padded, int rank);
TokenOrder zigzag_shares(const ParallelPlan& plan, const Packing& row, int64_t multiple, int rank);

}  // namespace longspan
