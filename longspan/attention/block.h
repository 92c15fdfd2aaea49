// Blocks of attention: ranges of queries and the ranges of keys that the queries see. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/rows/packing.h"

namespace longspan {

/// Queries [q_begin, q_begin + q_length) attend to keys [k_begin, k_begin + k_length). Indices of
/// queries and keys inside a block begin at 0. In a causal block, query i sees keys 0..i + offset;
/// offset >= 0. A block of a sliding window (sliding_window.h) has a `lower` end: query i sees no
/// key before key i + lower.
struct Block {
  int64_t q_begin, q_length, k_begin, k_length;
  bool causal;
  int64_t offset = 0;
  std::optional<int64_t> lower = {};
};

/// Keys [begin, end) of a block. The range is empty if end <= begin.
struct KeyRange {
  int64_t begin, end;
  int64_t length() const { return end > begin ? end - begin : 0; }
};

/// Returns the keys that query i of the block sees.
KeyRange keys_of(const Block& block, int64_t i);

/// Returns the block without queries that see no key, and without keys that no query sees. The
/// result has no lower end if every query sees the first key.
Block trimmed(const Block& block);

bool have_lower_ends(const std::vector<Block>& blocks);

/// Returns one causal block for each document without branches, and several blocks for a document
/// with branches (masked_rectangles.h). Ignores two-way spans: causal_blocks() of sliding_window.h
/// has all pairs of a layer.
std::vector<Block> causal_blocks(const Packing& packing);

/// Returns blocks with the same visible pairs. In each causal block of the result, the last query
/// sees the last key of the block. Kernels that align causal masks at the bottom right need such
/// blocks. Splits ranges of queries; no query is in more blocks than before.
std::vector<Block> aligned_at_end(const std::vector<Block>& blocks);

/// Appends to `parts` a part of `block`: queries [q_begin, q_end) over keys [k_first, k_last) of
/// the block. The part excludes queries that see none of these keys, and keys that none of these
/// queries sees. `block` has no lower end.
void add_part(std::vector<Block>& parts, const Block& block, int64_t q_begin, int64_t q_end,
              int64_t k_first, int64_t k_last);

/// Returns the number of pairs of a query and a visible key. `tile`: kernels compute whole tiles of
/// `tile` queries and `tile` keys, so all pairs of a tile count if any pair is visible.
double pairs_of(const std::vector<Block>& blocks, int64_t tile = 1);

}  // namespace longspan
