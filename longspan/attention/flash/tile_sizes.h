// Sizes of attention/flash that the account of memory goes by too. No torch.
#pragma once

#include <stdint.h>

namespace longspan::flash {

/// Rows and columns of a tile of scores. The score tile (80 KiB) and the packed keys and values of
/// a key tile stay in the second-level cache while every query head of the group passes over them.
inline constexpr int64_t kQueryTile = 96;
inline constexpr int64_t kKeyTile = 192;

/// Queries of a tile in the forward, which adds to the same sums for all keys: a small tile
/// computes fewer pairs that the causal mask hides.
inline constexpr int64_t kForwardTile = 48;

/// Floats between rows of a tile of scores: a multiple of a power of two would put a column of them
/// into few sets of the first-level cache.
inline constexpr int64_t kScoreStride = kKeyTile + 16;

/// Scratch of one thread in the backward: keys and values of a tile in the order of each product
/// that takes them, their gradients, the same of queries and of the output's gradients, two tiles
/// of scores, and padding.
inline constexpr int64_t backward_floats(int64_t key_dim, int64_t value_dim) {
  return kKeyTile * (3 * key_dim + 2 * value_dim) + 2 * kQueryTile * (key_dim + value_dim) +
         2 * kQueryTile * kScoreStride + 64;
}

/// It takes head dims that are multiples of this.
inline constexpr int64_t kHeadDimMultiple = 16;

}  // namespace longspan::flash
