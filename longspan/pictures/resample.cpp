#include "longspan/pictures/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace longspan {
namespace {

/// Bits after the point of an 8-bit picture's weights: 8 bits of values and two of headroom remain.
constexpr int kPrecision = 32 - 8 - 2;

/// Keys' cubic convolution with a = -1/2.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

/// Weights of the source pixels of each pixel along one axis.
struct Weights {
  int64_t most;                       // weights of a pixel
  std::vector<int64_t> first, count;  // source pixels
  std::vector<double> exact;          // `most` of each pixel
};

Weights weights_of(int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double filter_scale = std::max(scale, 1.0);
  const double support = 2.0 * filter_scale;
  Weights weights{static_cast<int64_t>(std::ceil(support)) * 2 + 1, {}, {}, {}};
  weights.exact.assign(to * weights.most, 0.0);
  for (int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const double inverse = 1.0 / filter_scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t end = std::min(static_cast<int64_t>(center + support + 0.5), from);
    double* out = weights.exact.data() + i * weights.most;
    double sum = 0.0;
    for (int64_t j = 0; j < end - first; ++j) {
      out[j] = cubic((static_cast<double>(j + first) - center + 0.5) * inverse);
      sum += out[j];
    }
    if (sum != 0.0) {
      for (int64_t j = 0; j < end - first; ++j) out[j] /= sum;
    }
    weights.first.push_back(first);
    weights.count.push_back(end - first);
  }
  return weights;
}

std::vector<int32_t> fixed_point(const Weights& weights) {
  std::vector<int32_t> fixed(weights.exact.size());
  std::transform(weights.exact.begin(), weights.exact.end(), fixed.begin(), [](double weight) {
    return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kPrecision));
  });
  return fixed;
}

uint8_t clip(int32_t value) { return static_cast<uint8_t>(std::clamp(value, 0, 255)); }

/// One pass over an 8-bit picture of `kBands` bands, along rows or columns. A row of the source has
/// `row` bytes, and neighbours along the axis are `step` bytes apart.
template <int kBands>
void pass_8bit(const uint8_t* source, int64_t step, int64_t count, const int32_t* weights,
               uint8_t* out) {
  int32_t sums[kBands];
  std::fill(sums, sums + kBands, 1 << (kPrecision - 1));
  for (int64_t j = 0; j < count; ++j, source += step) {
    for (int band = 0; band < kBands; ++band) sums[band] += source[band] * weights[j];
  }
  for (int band = 0; band < kBands; ++band) out[band] = clip(sums[band] >> kPrecision);
}

/// The same of 16 bits, in double.
void pass_16bit(const uint8_t* source, int64_t step, int64_t count, const double* weights,
                uint8_t* out) {
  double sum = 0.0;
  for (int64_t j = 0; j < count; ++j, source += step) {
    sum += (source[0] + (source[1] << 8)) * weights[j];
  }
  const int32_t value = std::clamp(static_cast<int32_t>(sum + 0.5), 0, 65535);
  out[0] = static_cast<uint8_t>(value & 255);
  out[1] = static_cast<uint8_t>(value >> 8);
}

/// Resizes along one axis.
template <int kBands>
Raster along(const Raster& raster, bool horizontal, int64_t to) {
  const int64_t bytes = bytes_per_pixel(raster.mode);
  const bool deep = raster.mode == PictureMode::kGrey16;
  const int64_t from = horizontal ? raster.size.width : raster.size.height;
  const Weights weights = weights_of(from, to);
  const std::vector<int32_t> fixed = deep ? std::vector<int32_t>{} : fixed_point(weights);
  Raster out{.mode = raster.mode, .size = raster.size, .pixels = {}, .key = raster.key};
  (horizontal ? out.size.width : out.size.height) = to;
  out.pixels.resize(out.size.width * out.size.height * bytes);
  const int64_t row = raster.size.width * bytes;
  const int64_t step = horizontal ? bytes : row;
  uint8_t* pixel = out.pixels.data();
  for (int64_t y = 0; y < out.size.height; ++y) {
    for (int64_t x = 0; x < out.size.width; ++x, pixel += bytes) {
      const int64_t i = horizontal ? x : y;
      const uint8_t* source =
          raster.pixels.data() + weights.first[i] * step + (horizontal ? y * row : x * bytes);
      if (deep) {
        pass_16bit(source, step, weights.count[i], weights.exact.data() + i * weights.most, pixel);
      } else {
        pass_8bit<kBands>(source, step, weights.count[i], fixed.data() + i * weights.most, pixel);
      }
    }
  }
  return out;
}

template <int kBands>
Raster bicubic(Raster raster, PictureSize size) {
  if (size.width != raster.size.width) raster = along<kBands>(raster, true, size.width);
  if (size.height != raster.size.height) raster = along<kBands>(raster, false, size.height);
  return raster;
}

/// Multiplies the bands before alpha by it.
void premultiply(std::vector<uint8_t>& pixels, int64_t bands) {
  for (size_t i = 0; i < pixels.size(); i += bands) {
    const int alpha = pixels[i + bands - 1];
    for (int64_t band = 0; band + 1 < bands; ++band) {
      const int product = pixels[i + band] * alpha + 128;
      pixels[i + band] = static_cast<uint8_t>(((product >> 8) + product) >> 8);
    }
  }
}

void divide_by_alpha(std::vector<uint8_t>& pixels, int64_t bands) {
  for (size_t i = 0; i < pixels.size(); i += bands) {
    const int alpha = pixels[i + bands - 1];
    if (alpha == 0 || alpha == 255) continue;
    for (int64_t band = 0; band + 1 < bands; ++band) {
      pixels[i + band] = clip(255 * pixels[i + band] / alpha);
    }
  }
}

Raster nearest(const Raster& raster, PictureSize size) {
  Raster out{.mode = raster.mode,
             .size = size,
             .pixels = {},
             .palette = raster.palette,
             .key = raster.key};
  out.pixels.resize(size.width * size.height);
  // Pillow's affine transform steps by the scale, from the middle of the first pixel.
  const auto places = [](int64_t from, int64_t to) {
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    std::vector<int64_t> at(to);
    double place = scale * 0.5;
    for (int64_t i = 0; i < to; ++i, place += scale) {
      at[i] = std::min(static_cast<int64_t>(place), from - 1);
    }
    return at;
  };
  const std::vector<int64_t> columns = places(raster.size.width, size.width);
  const std::vector<int64_t> rows = places(raster.size.height, size.height);
  uint8_t* pixel = out.pixels.data();
  for (const int64_t y : rows) {
    for (const int64_t x : columns) *pixel++ = raster.pixels[y * raster.size.width + x];
  }
  return out;
}

}  // namespace

Raster resized(const Raster& raster, PictureSize size) {
  if (size == raster.size) return raster;
  switch (raster.mode) {
    case PictureMode::kBilevel:
    case PictureMode::kPalette:
      return nearest(raster, size);
    case PictureMode::kGrey:
      return bicubic<1>(raster, size);
    case PictureMode::kGrey16:
      return bicubic<2>(raster, size);
    case PictureMode::kRgb:
      return bicubic<3>(raster, size);
    case PictureMode::kCmyk:
      return bicubic<4>(raster, size);
    case PictureMode::kGreyAlpha:
    case PictureMode::kRgba:
      break;
  }
  Raster multiplied = raster;
  const int64_t bands = bytes_per_pixel(raster.mode);
  premultiply(multiplied.pixels, bands);
  multiplied = raster.mode == PictureMode::kRgba ? bicubic<4>(std::move(multiplied), size)
                                                 : bicubic<2>(std::move(multiplied), size);
  divide_by_alpha(multiplied.pixels, bands);
  return multiplied;
}

}  // namespace longspan
