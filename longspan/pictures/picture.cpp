#include "longspan/pictures/picture.h"

#include <ATen/ATen.h>

#include "longspan/pictures/resample.h"

namespace longspan {
namespace {

// C: channels. H, W: rows, columns of pixels.

at::Tensor resized_1CHW(const at::Tensor& image_1CHW, PictureSize to,
                        PictureProcessor::Filter filter) {
  const std::array<int64_t, 2> size{to.height, to.width};
  if (image_1CHW.size(2) == to.height && image_1CHW.size(3) == to.width) return image_1CHW;
  if (filter == PictureProcessor::Filter::kBicubic) {
    return at::_upsample_bicubic2d_aa(image_1CHW, size, /*align_corners=*/false);
  }
  // torchvision resizes bytes linearly only by vector instructions.
#if defined(__aarch64__)
  const bool as_bytes = true;
#else
  const std::string capability = at::get_cpu_capability();
  const bool as_bytes = capability == "AVX2" || capability == "AVX512";
#endif
  if (as_bytes) return at::_upsample_bilinear2d_aa(image_1CHW, size, /*align_corners=*/false);
  return at::_upsample_bilinear2d_aa(image_1CHW.to(at::kFloat), size, /*align_corners=*/false)
      .round_()
      .to(at::kByte);
}

/// Rescales and normalizes in one step, with the mean and deviation of bytes.
at::Tensor normalized(const at::Tensor& image_1CHW, const PictureProcessor& processor) {
  const auto of_bytes = [&](const std::array<double, 3>& values) {
    const std::vector<float> floats(values.begin(), values.end());
    return at::tensor(floats, at::kFloat).mul(1.0 / processor.rescale_factor).view({-1, 1, 1});
  };
  at::Tensor values = image_1CHW.to(at::kFloat);
  return values.sub_(of_bytes(processor.mean)).div_(of_bytes(processor.std));
}

/// Returns the patches of one temporal patch, [h * w, X]. F: its frames.
at::Tensor patches_of(const at::Tensor& frames_FCHW, const PictureProcessor& processor,
                      const PictureGrid& grid) {
  const int64_t frames = frames_FCHW.size(0), channels = frames_FCHW.size(1);
  const int64_t merge = processor.merge_size, patch = processor.patch_size;
  return frames_FCHW
      .reshape({frames, channels, grid.h / merge, merge, patch, grid.w / merge, merge, patch})
      .permute({2, 5, 3, 6, 1, 0, 4, 7})
      .reshape({grid.h * grid.w, channels * frames * patch * patch});
}

at::Tensor tensor_of(const Raster& raster) {
  return at::from_blob(const_cast<uint8_t*>(raster.pixels.data()),
                       {1, raster.size.height, raster.size.width, 3}, at::kByte)
      .permute({0, 3, 1, 2})
      .contiguous();
}

}  // namespace

Raster limited_picture(std::string_view bytes, const std::string& place,
                       const std::optional<PictureLimits>& limits, int64_t most_pixels) {
  Raster raster = decode_picture(bytes, place, most_pixels);
  return limits ? limited(std::move(raster), *limits, place) : to_rgb(std::move(raster));
}

Raster limited(Raster raster, const PictureLimits& limits, const std::string& place) {
  for (const ResizeStep& step : limiting_steps(raster.size, limits, place)) {
    if (step.as_rgb) raster = to_rgb(std::move(raster));
    raster = resized(raster, step.size);
  }
  return to_rgb(std::move(raster));
}

PixelValues pixel_values(std::string_view bytes, const std::string& place,
                         const PictureProcessor& processor,
                         const std::optional<PictureLimits>& limits, int64_t most_pixels) {
  // A picture that will be refused is not decoded.
  PictureSize size = picture_size(bytes, place, most_pixels);
  if (limits) size = limited_size(size, *limits, place);
  static_cast<void>(grid_of(size, processor, place));
  return pixel_values(decode_picture(bytes, place, most_pixels), place, processor, limits);
}

PixelValues pixel_values(Raster raster, const std::string& place, const PictureProcessor& processor,
                         const std::optional<PictureLimits>& limits) {
  raster = limits ? limited(std::move(raster), *limits, place) : to_rgb(std::move(raster));
  const PictureGrid grid = grid_of(raster.size, processor, place);
  if (processor.whitens_transparent_colour) whiten_key(raster);
  const at::Tensor resized = resized_1CHW(
      tensor_of(raster), processed_size(raster.size, processor, place), processor.filter);
  at::Tensor values = normalized(resized, processor);
  if (processor.temporal_patch_size > 0) {
    values = values.expand({processor.temporal_patch_size, -1, -1, -1});
  }
  return {patches_of(values, processor, grid), grid};
}

at::Tensor frame_patches(const std::vector<Raster>& frames, const PictureProcessor& processor,
                         const PictureGrid& grid) {
  const PictureSize size{grid.w * processor.patch_size, grid.h * processor.patch_size};
  std::vector<at::Tensor> values;
  for (const Raster& frame : frames) {
    values.push_back(normalized(resized_1CHW(tensor_of(frame), size, processor.filter), processor));
  }
  return patches_of(at::cat(values), processor, grid);
}

}  // namespace longspan
