// Pillow's Image.resize with its default filter. No torch.
#pragma once

#include "longspan/pictures/raster.h"

namespace longspan {

/// Resizes a picture in its own mode, to the bit as Pillow: bicubic, with the filter widened where
/// the picture shrinks; colours are multiplied by alpha meanwhile; the nearest pixel in bilevel and
/// palette modes. Both sides of `size` must be at least 1.
Raster resized(const Raster& raster, PictureSize size);

}  // namespace longspan
