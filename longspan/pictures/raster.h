// A decoded picture, with Pillow's modes. No torch. (Decoders: rust/src/pictures.)
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Default limit of the pixels of a picture. Pillow refuses a picture with more pixels as a
/// decompression bomb.
inline constexpr int64_t kMostPixels = 178'956'970;

/// Pillow's modes. A row has no padding.
enum class PictureMode {
  kBilevel,    // "1": a byte of 0 or 255
  kGrey,       // "L"
  kGreyAlpha,  // "LA"
  kPalette,    // "P"
  kRgb,
  kRgba,
  kCmyk,    // 255 is full ink
  kGrey16,  // "I;16", little-endian
};

int64_t bytes_per_pixel(PictureMode mode);

/// Width and height in pixels.
struct PictureSize {
  int64_t width = 0, height = 0;

  bool operator==(const PictureSize&) const = default;
};

struct Raster {
  PictureMode mode = PictureMode::kRgb;
  PictureSize size;
  std::vector<uint8_t> pixels;
  std::vector<uint8_t> palette{};  // red, green, blue of up to 256 colours
  // The one transparent colour of a file without alpha, as Pillow's RGB picture keeps it.
  std::optional<std::array<uint8_t, 3>> key{};
};

/// Reads width and height, after EXIF's orientation, from the header. `place`: begins each error.
/// Throws UserError for other formats than JPEG, PNG, GIF, WebP and BMP, for a broken header, and
/// for more than `most_pixels`.
PictureSize picture_size(std::string_view bytes, const std::string& place,
                         int64_t most_pixels = kMostPixels);

/// Decodes a picture file, and applies EXIF's orientation. Decodes the first frame of an animation.
/// Throws UserError as picture_size(), and for broken or truncated data.
Raster decode_picture(std::string_view bytes, const std::string& place,
                      int64_t most_pixels = kMostPixels);

/// Applies EXIF's orientation, 1 to 8, as Pillow's exif_transpose.
Raster oriented(Raster raster, int orientation);

/// Returns the picture as Pillow's convert("RGB"): alpha is dropped, 16 bits are clipped to 255.
Raster to_rgb(Raster raster);

/// Makes the pixels of the transparent colour white, as transformers' processors do for RGB
/// pictures.
void whiten_key(Raster& rgb);

}  // namespace longspan
