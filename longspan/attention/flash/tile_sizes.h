// Tile sizes of attention/flash, which the memory account also reads. No torch.
#pragma once

#include <stdint.h>

namespace longspan::flash {

/// Rows and columns of a tile of scores. The score tile (80 KiB) and the packed keys and values of
/// a key tile stay in the second-level cache while the code processes all query heads of the kv
/// head.
inline constexpr int64_t kQueryTile = 96;
inline constexpr int64_t kKeyTile = 192;

/// Queries of a forward tile. Smaller tiles compute fewer pairs that the causal mask hides. The
/// forward can use small tiles because its sums stay in scratch for all keys.
inline constexpr int64_t kForwardTile = 48;

/// Floats between rows of a score tile. A stride divisible by a large power of two would map a
/// column to few sets of the first-level cache.
inline constexpr int64_t kScoreStride = kKeyTile + 16;

/// Returns the backward scratch of one thread, in floats: keys and values of a tile, packed for
/// each product that reads these tensors; the gradients of the keys and values; queries and output
/// gradients, packed for each product; two score tiles; and padding.
inline constexpr int64_t backward_floats(int64_t key_dim, int64_t value_dim) {
  return kKeyTile * (3 * key_dim + 2 * value_dim) + 2 * kQueryTile * (key_dim + value_dim) +
         2 * kQueryTile * kScoreStride + 64;
}

/// Head dims must be multiples of this number.
inline constexpr int64_t kHeadDimMultiple = 16;

}  // namespace longspan::flash
