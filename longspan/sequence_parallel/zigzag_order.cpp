#include "longspan/sequence_parallel/zigzag_order.h"

#include <algorithm>
#include <numeric>

#include "longspan/plan/method_parts.h"
#include "longspan/rows/padding.h"
#include "longspan/rows/share_of.h"

namespace longspan {

std::vector<int64_t> zigzag_places(const Packing& padded, int rank, int num_ranks) {
  std::vector<int64_t> places;
  places.reserve(padded.num_tokens() / num_ranks);
  for (int64_t document = 0; document < padded.num_documents(); ++document) {
    const int64_t chunk = padded.length(document) / (2 * num_ranks);
    for (const int64_t c : {rank, 2 * num_ranks - 1 - rank}) {
      for (int64_t i = 0; i < chunk; ++i) {
        places.push_back(padded.begin(document) + c * chunk + i);
      }
    }
  }
  return places;
}

int64_t zigzag_tokens_before(const Packing& padded, int64_t token, int rank, int num_ranks) {
  if (token == padded.num_tokens()) return token / num_ranks;
  const auto& boundaries = padded.boundaries();
  const int64_t document =
      std::upper_bound(boundaries.begin(), boundaries.end(), token) - boundaries.begin() - 1;
  const int64_t begin = padded.begin(document), chunk = padded.length(document) / (2 * num_ranks);
  const auto before_in_chunk = [&](int64_t c) {
    return std::clamp<int64_t>(token - begin - c * chunk, 0, chunk);
  };
  return begin / num_ranks + before_in_chunk(rank) + before_in_chunk(2 * num_ranks - 1 - rank);
}

TokenOrder zigzag_order(const Packing& packing, int64_t multiple, int rank, int num_ranks) {
  const int64_t chunks = 2 * num_ranks;
  TokenOrder order;
  order.packing = pad_tail(pad_documents(packing, chunks), std::lcm(chunks, num_ranks * multiple));
  std::vector<int64_t> index(order.packing.num_tokens(), -1);  // of the padded row
  for (int64_t document = 0; document < packing.num_documents(); ++document) {
    const auto begin = index.begin() + order.packing.begin(document);
    std::iota(begin, begin + packing.length(document), packing.begin(document));
  }
  for (const int64_t place : zigzag_places(order.packing, rank, num_ranks)) {
    order.index.push_back(index[place]);
  }
  return order;
}

std::vector<Block> zigzag_blocks(const Packing& padded, int rank, int owner, int num_ranks) {
  std::vector<Block> blocks;
  for (int64_t document = 0; document < padded.num_documents(); ++document) {
    const int64_t both = padded.length(document) / num_ranks, chunk = both / 2;
    const int64_t begin = padded.begin(document) / num_ranks;
    if (owner == rank) {
      blocks.push_back({begin, both, begin, both, true});
    } else if (owner < rank) {  // the owner's first chunk precedes both of ours
      blocks.push_back({begin, both, begin, chunk, false});
    } else {  // both of the owner's chunks lie between our two
      blocks.push_back({begin + chunk, chunk, begin, both, false});
    }
  }
  return blocks;
}

Positions zigzag_runs(const Packing& padded, int rank, int num_ranks) {
  Positions runs;
  int64_t token = 0;
  for (int64_t document = 0; document < padded.num_documents(); ++document) {
    const int64_t chunk = padded.length(document) / (2 * num_ranks);
    for (const int64_t c : {rank, 2 * num_ranks - 1 - rank}) {
      add_run(runs, {token, chunk, padded.begin(document) + c * chunk});
      token += chunk;
    }
  }
  return runs;
}

RingLayout zigzag_layout(const char* name) {
  return {name, zigzag_order, zigzag_blocks, zigzag_tokens_before, zigzag_runs};
}

RankGeometry zigzag_geometry(const ParallelPlan& plan, const AttentionShape& shape,
                             const Packing& padded, int rank) {
  if (plan.ring_size == 1) return geometry_with_latents(plan, shape, padded, rank);
  return ring_geometry(zigzag_layout("zigzag"), plan, shape, padded, rank);
}

TokenOrder zigzag_shares(const ParallelPlan& plan, const Packing& row, int64_t multiple, int rank) {
  const int R = plan.ring_size, U = plan.ulysses_size;
  if (R == 1) return consecutive_shares(plan, row, multiple, rank);
  return share_of(zigzag_order(row, multiple * U, rank / U, R), rank % U, U);
}

}  // namespace longspan
