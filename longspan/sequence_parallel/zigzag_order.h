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

/// Where the local tokens of a rank are in the padded row.
std::vector<int64_t> zigzag_places(const Packing& padded, int rank, int num_ranks);

/// The same as runs.
Positions zigzag_runs(const Packing& padded, int rank, int num_ranks);

/// How many of them come before `token` of the padded row.
int64_t zigzag_tokens_before(const Packing& padded, int64_t token, int rank, int num_ranks);

/// What the queries of `rank` see of the keys of `owner`, in the local tokens of each, if no
/// document is forked: in every step half of the pairs of a query and a key.
std::vector<Block> zigzag_blocks(const Packing& padded, int rank, int owner, int num_ranks);

/// All of these, for messages under this name.
RingLayout zigzag_layout(const char* name);

/// Method::geometry and Method::token_order of a ring of the plan's degree in zigzag order inside
/// Ulysses of its other degree.
RankGeometry zigzag_geometry(const ParallelPlan& plan, const AttentionShape& shape,
                             const Packing& padded, int rank);
TokenOrder zigzag_shares(const ParallelPlan& plan, const Packing& row, int64_t multiple, int rank);

}  // namespace longspan
