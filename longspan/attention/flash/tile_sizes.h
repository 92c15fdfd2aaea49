// Sizes of attention/flash that the account of memory goes by too. No torch.
#pragma once

#include <stdint.h>

namespace longspan::flash {

/// Rows and columns of a tile of scores. The score tile (kQueryTile x kKeyTile floats, 72 KiB) and
/// the packed keys and values of a key tile stay in the second-level cache while every query head
/// of the group passes over them.
inline constexpr int64_t kQueryTile = 96;
inline constexpr int64_t kKeyTile = 192;

/// It takes head dims that are multiples of this.
inline constexpr int64_t kHeadDimMultiple = 16;

}  // namespace longspan::flash
