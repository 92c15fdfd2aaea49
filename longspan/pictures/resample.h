// Pillow's Image.resize with its default filter. No torch.
#pragma once

#include "longspan/pictures/raster.h"

namespace longspan {

/// Resizes a picture in its own mode. The result equals Pillow's bit for bit. Bilevel and palette
/// modes take the nearest pixel. Other modes use the bicubic filter, which is wider where the
/// picture shrinks, with colours multiplied by alpha during the resize. Both sides of `size` must
/// be at least 1.
Raster resized(const Raster& raster, PictureSize size);

}  // namespace longspan
