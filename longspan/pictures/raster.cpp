#include "longspan/pictures/raster.h"

#include <algorithm>
#include <cstring>

#include "longspan/text/rust_call.h"

namespace longspan {
namespace {

std::vector<uint8_t> take_bytes(LsrString bytes) {
  std::vector<uint8_t> copy(bytes.size);
  if (bytes.size > 0) std::memcpy(copy.data(), bytes.data, bytes.size);
  lsr_string_free(bytes);
  return copy;
}

/// Moves the pixel at (x, y) of the result from (from_x, from_y).
template <int kBytes>
void transpose(const Raster& from, int orientation, Raster& to) {
  const int64_t width = to.size.width, height = to.size.height;
  const int64_t last_x = from.size.width - 1, last_y = from.size.height - 1;
  const bool swaps = orientation >= 5;
  const bool flips_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flips_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  uint8_t* out = to.pixels.data();
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x, out += kBytes) {
      int64_t from_x = swaps ? y : x, from_y = swaps ? x : y;
      if (flips_x) from_x = last_x - from_x;
      if (flips_y) from_y = last_y - from_y;
      std::memcpy(out, from.pixels.data() + (from_y * from.size.width + from_x) * kBytes, kBytes);
    }
  }
}

/// a * b / 255, rounded, in Pillow's arithmetic.
uint8_t times_255th(int a, int b) {
  const int product = a * b + 128;
  return static_cast<uint8_t>(((product >> 8) + product) >> 8);
}

/// Red, green and blue of all 256 indices: black beyond the palette.
std::vector<uint8_t> full_palette(const std::vector<uint8_t>& palette) {
  std::vector<uint8_t> full(3 * 256);
  std::copy_n(palette.begin(), std::min(palette.size(), full.size()), full.begin());
  return full;
}

}  // namespace

int64_t bytes_per_pixel(PictureMode mode) {
  switch (mode) {
    case PictureMode::kBilevel:
    case PictureMode::kGrey:
    case PictureMode::kPalette:
      return 1;
    case PictureMode::kGreyAlpha:
    case PictureMode::kGrey16:
      return 2;
    case PictureMode::kRgb:
      return 3;
    case PictureMode::kRgba:
    case PictureMode::kCmyk:
      return 4;
  }
  return 0;
}

PictureSize picture_size(std::string_view bytes, const std::string& place, int64_t most_pixels) {
  uint32_t width = 0, height = 0;
  rust_call(lsr_picture_size, rust_view(bytes), rust_view(place),
            static_cast<uint64_t>(most_pixels), &width, &height);
  return {width, height};
}

Raster decode_picture(std::string_view bytes, const std::string& place, int64_t most_pixels) {
  LsrPicture picture{};
  rust_call(lsr_picture_decode, rust_view(bytes), rust_view(place),
            static_cast<uint64_t>(most_pixels), &picture);
  Raster raster{.mode = static_cast<PictureMode>(picture.mode),
                .size = {picture.width, picture.height},
                .pixels = take_bytes(picture.pixels),
                .palette = take_bytes(picture.palette)};
  if (picture.key >= 0) {
    raster.key = {static_cast<uint8_t>(picture.key >> 16), static_cast<uint8_t>(picture.key >> 8),
                  static_cast<uint8_t>(picture.key)};
  }
  return oriented(std::move(raster), picture.orientation);
}

Raster oriented(Raster raster, int orientation) {
  if (orientation <= 1 || orientation > 8) return raster;
  Raster turned{.mode = raster.mode,
                .size = raster.size,
                .pixels = {},
                .palette = raster.palette,
                .key = raster.key};
  if (orientation >= 5) std::swap(turned.size.width, turned.size.height);
  turned.pixels.resize(raster.pixels.size());
  switch (bytes_per_pixel(raster.mode)) {
    case 1:
      transpose<1>(raster, orientation, turned);
      break;
    case 2:
      transpose<2>(raster, orientation, turned);
      break;
    case 3:
      transpose<3>(raster, orientation, turned);
      break;
    default:
      transpose<4>(raster, orientation, turned);
  }
  return turned;
}

Raster to_rgb(Raster raster) {
  if (raster.mode == PictureMode::kRgb) return raster;
  Raster rgb{.mode = PictureMode::kRgb, .size = raster.size, .pixels = {}, .key = raster.key};
  const int64_t num_pixels = raster.size.width * raster.size.height;
  rgb.pixels.resize(3 * num_pixels);
  const std::vector<uint8_t> palette =
      raster.mode == PictureMode::kPalette ? full_palette(raster.palette) : std::vector<uint8_t>{};
  const uint8_t* in = raster.pixels.data();
  const int64_t step = bytes_per_pixel(raster.mode);
  uint8_t* out = rgb.pixels.data();
  for (int64_t i = 0; i < num_pixels; ++i, in += step, out += 3) {
    switch (raster.mode) {
      case PictureMode::kBilevel:
      case PictureMode::kGrey:
      case PictureMode::kGreyAlpha:
        out[0] = out[1] = out[2] = in[0];
        break;
      case PictureMode::kGrey16:
        out[0] = out[1] = out[2] = in[1] == 0 ? in[0] : 255;
        break;
      case PictureMode::kPalette:
        std::memcpy(out, palette.data() + 3 * in[0], 3);
        break;
      case PictureMode::kRgb:
      case PictureMode::kRgba:
        std::memcpy(out, in, 3);
        break;
      case PictureMode::kCmyk: {
        const int light = 255 - in[3];
        for (int band = 0; band < 3; ++band) {
          out[band] = static_cast<uint8_t>(light - times_255th(in[band], light));
        }
      }
    }
  }
  return rgb;
}

void whiten_key(Raster& rgb) {
  if (!rgb.key) return;
  for (size_t i = 0; i < rgb.pixels.size(); i += 3) {
    uint8_t* pixel = rgb.pixels.data() + i;
    if (std::equal(rgb.key->begin(), rgb.key->end(), pixel)) std::fill(pixel, pixel + 3, 255);
  }
}

}  // namespace longspan
