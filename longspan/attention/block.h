// Which queries see which keys, as blocks. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/data/packing.h"

namespace longspan {

/// Queries [q_begin, q_begin + q_length) attend to keys [k_begin, k_begin + k_length). When causal,
/// query i of the block sees keys 0..i + offset of the block; offset >= 0. With a lower end, as a
/// sliding window has it (sliding_window.h), it sees none of them before the (i + lower)-th.
struct Block {
  int64_t q_begin, q_length, k_begin, k_length;
  bool causal;
  int64_t offset = 0;
  std::optional<int64_t> lower = {};
};

/// Keys [begin, end) of a block; none where end <= begin.
struct KeyRange {
  int64_t begin, end;
  int64_t length() const { return end > begin ? end - begin : 0; }
};

/// What query i of the block sees of it.
KeyRange keys_of(const Block& block, int64_t i);

/// The block without the queries that see no key of it and the keys that no query sees. Its lower
/// end is left out where every query sees the first key.
Block trimmed(const Block& block);

bool have_lower_ends(const std::vector<Block>& blocks);

/// One causal block for each document, several for a forked one (masked_rectangles.h).
std::vector<Block> causal_blocks(const Packing& packing);

/// The same attention in blocks whose last query, where causal, sees exactly the last key: what
/// kernels that align at the bottom right ask for. Queries are split, never shared.
std::vector<Block> aligned_at_end(const std::vector<Block>& blocks);

/// Adds a part of `block`, which has no lower end, to `parts`: its queries [q_begin, q_end) over
/// its keys from the k_first-th to the one before the k_last-th. Leaves out queries that see none
/// of these keys and keys that none of these queries sees.
void add_part(std::vector<Block>& parts, const Block& block, int64_t q_begin, int64_t q_end,
              int64_t k_first, int64_t k_last);

/// Pairs of a query and a key that it sees, in tiles of so many queries and keys that are computed
/// whole.
double pairs_of(const std::vector<Block>& blocks, int64_t tile = 1);

}  // namespace longspan
