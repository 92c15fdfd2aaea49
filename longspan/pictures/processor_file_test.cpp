#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "longspan/base/user_error.h"
#include "longspan/pictures/picture_processor.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

/// The processor of a folder with this preprocessor_config.json.
PictureProcessor read(const std::string& json) {
  const testing::TemporaryFolder folder;
  folder.write("preprocessor_config.json", json);
  return load_picture_processor(folder.path);
}

std::string with(const std::string& more) {
  return R"({"image_processor_type": "Qwen2VLImageProcessor")" + (more.empty() ? "" : ", " + more) +
         "}";
}

std::string refusal(const std::string& more) {
  try {
    read(with(more));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("Qwen's processors: defaults, pixels by their own keys or by size") {
  const PictureProcessor plain = read(with(""));
  CHECK(plain.kind == PictureProcessor::Kind::kQwenPatches);
  CHECK(plain.min_pixels == 56 * 56);
  CHECK(plain.max_pixels == 28 * 28 * 1280);
  CHECK(plain.filter == PictureProcessor::Filter::kBicubic);
  CHECK(plain.mean[0] == 0.48145466);
  CHECK(plain.whitens_transparent_colour);
  CHECK_FALSE(read(with(R"("do_convert_rgb": null)")).whitens_transparent_colour);
  const PictureProcessor sized =
      read(with(R"("size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16)"));
  CHECK(sized.min_pixels == 65536);
  CHECK(sized.max_pixels == 16777216);
  CHECK(sized.factor() == 32);
  const PictureProcessor both = read(
      with(R"("size": {"shortest_edge": 1, "longest_edge": 9}, "max_pixels": 7, "resample": 2)"));
  CHECK(both.min_pixels == 1);
  CHECK(both.max_pixels == 7);
  CHECK(both.filter == PictureProcessor::Filter::kBilinear);
}

TEST_CASE("Gemma 3's processor: its side, and tokens from either file") {
  const testing::TemporaryFolder folder;
  folder.write("preprocessor_config.json",
               R"({"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": null,
                   "size": {"height": 896, "width": 896}})");
  PictureProcessor processor = load_picture_processor(folder.path);
  CHECK(processor.side == 896);
  CHECK(grid_of({50, 20}, processor) == PictureGrid{1, 64, 64});
  CHECK_THROWS_AS(num_features({1, 64, 64}, processor), UserError);
  folder.write("config.json", R"({"mm_tokens_per_image": 256})");
  CHECK(num_features({1, 64, 64}, load_picture_processor(folder.path)) == 256);
  folder.write("processor_config.json", R"({"image_seq_length": 64})");
  CHECK(num_features({1, 64, 64}, load_picture_processor(folder.path)) == 64);
  CHECK(load_picture_processor(folder.path).merge_size == 8);
  CHECK(load_picture_processor(folder.path).temporal_patch_size == 0);
  for (const char* tokens : {"63", "81"}) {  // no square; no squares of whole patches
    folder.write("processor_config.json", fmt::format(R"({{"image_seq_length": {}}})", tokens));
    CHECK_THROWS_WITH_AS(load_picture_processor(folder.path),
                         doctest::Contains("must be squares of whole patches"), UserError);
  }
}

TEST_CASE("processor_config.json with a processor inside comes first") {
  const testing::TemporaryFolder folder;
  folder.write("preprocessor_config.json", "{}");
  folder.write("processor_config.json",
               R"({"image_processor": )" + with(R"("merge_size": 3)") + "}");
  CHECK(load_picture_processor(folder.path).merge_size == 3);
}

TEST_CASE("What would change the pixels is refused by name") {
  for (const char* more :
       {R"("do_resize": false)", R"("do_rescale": false)", R"("do_normalize": false)",
        R"("do_pad": true)", R"("do_center_crop": true)", R"("do_pan_and_scan": true)",
        R"("resample": 1)", R"("data_format": "channels_last")", R"("image_std": [0, 1, 1])",
        R"("image_mean": 0.5)", R"("rescale_factor": 0)", R"("size": {"height": 4, "width": 4})",
        R"("patch_size": 0)", R"("patch_size": null)", R"("do_resize": null)",
        R"("rescale_factor": null)", R"("max_pixels": 1e30)", R"("size_divisor": 32)",
        R"("auto_map": {"AutoImageProcessor": "x.y"})"}) {
    const std::string text = more;
    const std::string key = text.substr(1, text.find('"', 1) - 1);
    CHECK_MESSAGE(refusal(more).find(key) != std::string::npos, more, ": ", refusal(more));
  }
  CHECK(refusal(R"("do_pad": null, "crop_size": {"height": 1}, "do_convert_rgb": true)").empty());
  CHECK_THROWS_AS(read(R"({"image_processor_type": "CLIPImageProcessor"})"), UserError);
  CHECK_THROWS_AS(read("{}"), UserError);
  const testing::TemporaryFolder empty;
  CHECK_THROWS_AS(load_picture_processor(empty.path), UserError);
}

}  // namespace
}  // namespace longspan
