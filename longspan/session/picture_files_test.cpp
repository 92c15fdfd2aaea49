#include "longspan/session/picture_files.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <initializer_list>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/files/checksum.h"
#include "longspan/testing/bitmap.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

uint64_t checksum_of_bytes(const std::string& bytes) {
  Xxh64 hash;
  hash.add(bytes.data(), bytes.size());
  return hash.value();
}

TEST_CASE("picture files: a picture, or a frame of a list, that changed is refused by its path") {
  const testing::TemporaryFolder folder;
  folder.write("preprocessor_config.json",
               R"({"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 784})");
  Config config;
  config.model.model_name_or_path = folder.path;
  const FramePatches patches = frame_patches_of(config, {});
  Picture video{.files = {}, .is_video = true, .grid = {2, 2, 2}, .num_features = 2};
  for (int i = 0; i < 4; ++i) {
    const std::string bytes = testing::bitmap(28, 28, static_cast<char>(40 * i));
    video.files.push_back(folder.write("frame" + std::to_string(i) + ".bmp", bytes));
    video.file_checksums.push_back(checksum_of_bytes(bytes));
  }
  const Picture picture{.files = {video.files[2]},
                        .grid = {1, 2, 2},
                        .num_features = 1,
                        .checksum = video.file_checksums[2]};
  // A temporal patch of a video has two frames, and one of a picture the same frame twice.
  const at::Tensor of_video = patches(video, 1).view({4, 3, 2, 14 * 14}),
                   of_picture = patches(picture, 0).view({4, 3, 2, 14 * 14});
  CHECK(at::equal(of_video.select(2, 0), of_picture.select(2, 0)));
  CHECK(at::equal(of_picture.select(2, 0), of_picture.select(2, 1)));
  CHECK(of_video.select(2, 1).gt(of_video.select(2, 0)).all().item<bool>());

  folder.write("frame2.bmp", testing::bitmap(28, 28, '\1'));
  video.record.text = "rows.json, row 3";
  CHECK_NOTHROW(patches(video, 0));
  for (const Picture* changed : std::initializer_list<const Picture*>{&video, &picture}) {
    const int64_t t = changed->is_video ? 1 : 0;
    const std::string said = changed->record.text + (changed->is_video ? ": " : "") +
                             video.files[2] + ": the picture has changed since it was first read";
    CHECK_THROWS_WITH_AS(patches(*changed, t), doctest::Contains(said.c_str()), UserError);
  }
}

}  // namespace
}  // namespace longspan
