// What the forks of a row (data/packing.h) take out of attention.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/data/packing.h"

namespace longspan {

/// Queries [q_begin, q_end) do not see keys [k_begin, k_end).
struct Hole {
  int64_t q_begin, q_end, k_begin, k_end;
  bool operator==(const Hole&) const = default;
};

/// How many of some tokens of a row come before `token` of the row. Tokens that are kept in the
/// order of the row have their own place by it, and a hole of the row is one of theirs.
using TokensBefore = std::function<int64_t(int64_t token)>;

/// One for each fork, in the order of the row: between queries and keys that are some of the row's
/// tokens, counted in these. Empty ones are left out.
std::vector<Hole> holes_of(const Packing& packing, const TokensBefore& queries_before,
                           const TokensBefore& keys_before);

/// The blocks without the pairs of the holes. Queries of a block that lie in a hole become a block
/// of the keys before it and one of those after it, so a query may then be in two blocks. Holes
/// share no queries and are sorted by them.
std::vector<Block> without_holes(const std::vector<Block>& blocks, const std::vector<Hole>& holes);

}  // namespace longspan
