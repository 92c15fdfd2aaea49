// Blocks of attention: ranges of queries and the keys that they see. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/rows/packing.h"

namespace longspan {

/// Queries [q_begin, q_begin + q_length) attend to keys [k_begin, k_begin + k_length). In a causal
/// block, query i sees keys 0..i + offset of the block; offset >= 0. A block of a sliding window
/// (sliding_window.h) has a `lower` end: query i sees no key before key i + lower.
struct Block {
  int64_t q_begin, q_length, k_begin, k_length;
  bool causal;
  int64_t offset = 0;
  std::optional<int64_t> lower = {};
};

/// Keys [begin, end) of a block. Empty where end <= begin.
struct KeyRange {
  int64_t begin, end;
  int64_t length() const { return end > begin ? end - begin : 0; }
};

/// The keys of the block that its query i sees.
KeyRange keys_of(const Block& block, int64_t i);

/// Removes the queries that see no key and the keys that no query sees, and returns the rest of the
/// block. The result has no lower end where every query sees the first key.
Block trimmed(const Block& block);

bool have_lower_ends(const std::vector<Block>& blocks);

/// Returns one causal block for each document, and several for a forked one (masked_rectangles.h).
/// Ignores two-way spans: causal_blocks() of sliding_window.h has all pairs of a layer.
std::vector<Block> causal_blocks(const Packing& packing);

/// Returns blocks of the same attention. In each causal one, the last key that the last query sees
/// is the last key of the block. Kernels that align causal masks at the bottom right need such
/// blocks. Splits queries; no query is in more blocks than before.
std::vector<Block> aligned_at_end(const std::vector<Block>& blocks);

/// Appends to `parts` a part of `block`: queries [q_begin, q_end) over keys [k_first, k_last) of
/// the block. Leaves out queries that see none of these keys, and keys that none of these queries
/// sees. `block` has no lower end.
void add_part(std::vector<Block>& parts, const Block& block, int64_t q_begin, int64_t q_end,
              int64_t k_first, int64_t k_last);

/// The number of pairs of a query and a key that it sees. `tile`: kernels compute whole tiles of
/// `tile` queries and `tile` keys, so each tile with a visible pair counts whole.
double pairs_of(const std::vector<Block>& blocks, int64_t tile = 1);

}  // namespace longspan
