// Tile sizes of attention/flash, which the memory account also reads. No torch.
#pragma once

#include <stdint.h>

namespace longspan::flash {

/// Rows and columns of a tile of scores. The score tile (80 KiB) and the packed keys and values of
/// a key tile stay in the second-level cache while all query heads of the group pass over them.
inline constexpr int64_t kQueryTile = 96;
inline constexpr int64_t kKeyTile = 192;

/// Queries of a forward tile. The forward adds to the same sums for all keys, so it can use small
/// tiles, which compute fewer pairs that the causal mask hides.
inline constexpr int64_t kForwardTile = 48;

/// Floats between rows of a score tile. A multiple of a power of two would put a column into few
/// sets of the first-level cache.
inline constexpr int64_t kScoreStride = kKeyTile + 16;

/// Backward scratch of one thread, in floats: keys and values of a tile, packed for each product
/// that reads them; their gradients; queries and output gradients, packed likewise; two score
/// tiles; and padding.
inline constexpr int64_t backward_floats(int64_t key_dim, int64_t value_dim) {
  return kKeyTile * (3 * key_dim + 2 * value_dim) + 2 * kQueryTile * (key_dim + value_dim) +
         2 * kQueryTile * kScoreStride + 64;
}

/// Head dims must be multiples of this.
inline constexpr int64_t kHeadDimMultiple = 16;

}  // namespace longspan::flash
