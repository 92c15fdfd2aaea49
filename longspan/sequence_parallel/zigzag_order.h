// Zigzag order: every rank has the same causal work. Each document is cut in 2R chunks, of which
// rank r holds chunks r and 2R-1-r, one behind the other. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/data/token_order.h"
#include "longspan/sequence_parallel/ring_layout.h"

namespace longspan {

/// Each document is padded to a multiple of 2R, and the row, by a document of padding, until a
/// share is a multiple of `multiple`.
TokenOrder zigzag_order(const Packing& packing, int64_t multiple, int rank, int num_ranks);

/// For each local token of `rank`, its place in the padded row.
std::vector<int64_t> zigzag_places(const Packing& padded, int rank, int num_ranks);

/// The same places as runs of even steps.
Positions zigzag_runs(const Packing& padded, int rank, int num_ranks);

/// How many of the local tokens of `rank` come before `token` of the padded row.
int64_t zigzag_tokens_before(const Packing& padded, int64_t token, int rank, int num_ranks);

/// Which keys of `owner` the queries of `rank` see, as blocks of the local tokens of each, where no
/// document is forked. In every step these are 50 % of the pairs of a query and a key.
std::vector<Block> zigzag_blocks(const Packing& padded, int rank, int owner, int num_ranks);

/// The functions above as one layout. `name`: of the method, in messages.
RingLayout zigzag_layout(const char* name);

/// Method::geometry and Method::token_order of a ring of the plan's degree in zigzag order inside
/// Ulysses of its other degree.
RankGeometry zigzag_geometry(const ParallelPlan& plan, const AttentionShape& shape,
                             const Packing& padded, int rank);
TokenOrder zigzag_shares(const ParallelPlan& plan, const Packing& row, int64_t multiple, int rank);

}  // namespace longspan
