// The patches of a picture. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// Patches of a picture or of a video's frames: temporal patches, rows, columns.
struct PictureGrid {
  int64_t t = 0, h = 0, w = 0;

  int64_t num_patches() const { return t * h * w; }
  bool operator==(const PictureGrid&) const = default;
};

}  // namespace longspan
