#include "longspan/pictures/picture.h"

#include <ATen/ATen.h>

#include <doctest/doctest.h>

#include <limits>

#include "longspan/base/user_error.h"
#include "longspan/pictures/resample.h"

namespace longspan {
namespace {

std::string little(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i, value >>= 8) text += static_cast<char>(value & 255);
  return text;
}

/// A BMP of 24 bits a pixel; the picture's data may be shorter than the header says.
std::string bitmap(int64_t width, int64_t height, size_t num_bytes) {
  return "BM" + little(0, 8) + little(54, 4) + little(40, 4) + little(width, 4) +
         little(height, 4) + little(1, 2) + little(24, 2) + little(0, 24) +
         std::string(num_bytes, '\x40');
}

std::string error_of(const std::string& bytes, int64_t most_pixels = kMostPixels) {
  try {
    decode_picture(bytes, "row 3", most_pixels);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

PictureProcessor qwen() {
  PictureProcessor processor;
  processor.mean = processor.std = {0.5, 0.5, 0.5};
  return processor;
}

TEST_CASE("A picture of few bytes with a large size is refused before its memory is taken") {
  CHECK(error_of(bitmap(0x7FFFFFF0, 0x7FFFFFF0, 4)).find("the limit is 178956970") !=
        std::string::npos);
  CHECK(error_of(bitmap(100, 100, 4), 9999) ==
        "row 3: the picture has 100 x 100 = 10000 pixels; the limit is 9999. Make it smaller.");
  CHECK(error_of(bitmap(0, 5, 4)) ==
        "row 3: the BMP picture cannot be read: its size is 0 x 5. Replace or remove it.");
}

TEST_CASE("Bytes that are no whole picture are refused with their place") {
  CHECK(error_of("").find("row 3: an empty file was given as a picture") == 0);
  CHECK(error_of("<svg/>").find("row 3: a file of another kind was given") == 0);
  CHECK(error_of(bitmap(4, 4, 47)) ==
        "row 3: the BMP picture cannot be read: it is truncated. Replace or remove it.");
  const std::string heads[] = {"\xFF\xD8\xFF\xE0", std::string("\x89PNG\r\n\x1a\n"), "GIF89a",
                               std::string("RIFF\0\0\0\0WEBPVP8 ", 16), "BM"};
  for (const std::string& head : heads) {
    CHECK(error_of(head).find("row 3: ") == 0);
    CHECK(error_of(head + std::string(100, '\xFF')).find("row 3: ") == 0);
    CHECK(error_of(head + std::string(100, '\0')).find("row 3: ") == 0);
  }
}

TEST_CASE("The header gives the size that the decoded picture has") {
  const std::string bytes = bitmap(3, 2, 24);
  CHECK(picture_size(bytes, "row 3") == PictureSize{3, 2});
  const Raster raster = decode_picture(bytes, "row 3");
  CHECK(raster.size == PictureSize{3, 2});
  CHECK(raster.pixels == std::vector<uint8_t>(18, 0x40));
}

TEST_CASE("Orientations turn and mirror as EXIF defines them") {
  const Raster raster{.mode = PictureMode::kGrey, .size = {3, 2}, .pixels = {1, 2, 3, 4, 5, 6}};
  const std::vector<std::vector<uint8_t>> turned = {
      {1, 2, 3, 4, 5, 6}, {3, 2, 1, 6, 5, 4}, {6, 5, 4, 3, 2, 1}, {4, 5, 6, 1, 2, 3},
      {1, 4, 2, 5, 3, 6}, {4, 1, 5, 2, 6, 3}, {6, 3, 5, 2, 4, 1}, {3, 6, 2, 5, 1, 4}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const Raster result = oriented(raster, orientation);
    CHECK(result.pixels == turned[orientation - 1]);
    CHECK(result.size == (orientation < 5 ? PictureSize{3, 2} : PictureSize{2, 3}));
  }
}

TEST_CASE("LLaMA-Factory's limits shrink, grow, widen and squeeze") {
  CHECK(limited_size({768, 768}, {}) == PictureSize{768, 768});
  CHECK(limited_size({1536, 1536}, {}) == PictureSize{768, 768});
  CHECK(limited_size({16, 16}, {}) == PictureSize{32, 32});
  CHECK(limited_size({16, 16}, {.as_qwen2_vl = false}) == PictureSize{32, 32});
  CHECK(limited_size({64, 20}, {}) == PictureSize{64, 28});
  CHECK(limited_size({28 * 201, 28}, {}) == PictureSize{28 * 180, 28});
  CHECK(limited_size({28, 28 * 201}, {}) == PictureSize{28, 28 * 180});
  CHECK_THROWS_AS(limited_size({100'000'000, 1}, {}), UserError);
}

TEST_CASE("Grids have blocks of merged patches within the limits of pixels") {
  const PictureProcessor processor = qwen();
  CHECK(grid_of({280, 140}, processor) == PictureGrid{1, 10, 20});
  CHECK(num_features(grid_of({280, 140}, processor), processor) == 50);
  CHECK(grid_of({1, 1}, processor) == PictureGrid{1, 4, 4});
  CHECK(grid_of({100, 42}, processor) == PictureGrid{1, 4, 8});  // 1.5 blocks: to the even number
  const PictureGrid large = grid_of({10000, 10000}, processor);
  CHECK(large.num_patches() * 14 * 14 <= processor.max_pixels);
  CHECK_NOTHROW(grid_of({2000, 10}, processor));
  CHECK_THROWS_AS(grid_of({2001, 10}, processor), UserError);
}

TEST_CASE("Patches follow each other in merged blocks, with the frame repeated") {
  PictureProcessor processor = qwen();
  processor.patch_size = 2;
  processor.min_pixels = 1;
  const std::string header = bitmap(8, 4, 0);
  std::string pixels;
  for (int i = 0; i < 3 * 8 * 4; ++i) pixels += static_cast<char>(i);
  const std::string bytes = header + pixels;
  const PixelValues values = pixel_values(bytes, "row 3", processor, std::nullopt);
  CHECK(values.grid == PictureGrid{1, 2, 4});
  CHECK(values.patches_PX.sizes() == at::IntArrayRef({8, 3 * 2 * 2 * 2}));
  const Raster raster = decode_picture(bytes, "row 3");
  for (int64_t patch = 0; patch < 8; ++patch) {
    const int64_t row = patch / 2 % 2, column = patch / 4 * 2 + patch % 2;
    for (int64_t x = 0; x < 24; ++x) {
      const int64_t channel = x / 8, dy = x / 2 % 2, dx = x % 2;
      const int64_t at = ((row * 2 + dy) * 8 + column * 2 + dx) * 3 + channel;
      CHECK(values.patches_PX[patch][x].item<float>() == (raster.pixels[at] - 127.5F) / 127.5F);
    }
  }
}

TEST_CASE("Resizing keeps a picture of one colour, and its alpha") {
  Raster raster{.mode = PictureMode::kRgba, .size = {9, 7}, .pixels = {}};
  for (int i = 0; i < 63; ++i) raster.pixels.insert(raster.pixels.end(), {200, 100, 50, 255});
  const Raster larger = resized(raster, {20, 3});
  CHECK(larger.size == PictureSize{20, 3});
  for (size_t i = 0; i < larger.pixels.size(); i += 4) {
    CHECK(std::vector<uint8_t>(larger.pixels.begin() + i, larger.pixels.begin() + i + 4) ==
          std::vector<uint8_t>{200, 100, 50, 255});
  }
}

}  // namespace
}  // namespace longspan
