#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "longspan/pictures/frame_reader.h"
#include "longspan/pictures/video_sample.h"
#include "longspan/testing/dataset_folder.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

using Numbers = std::vector<int64_t>;

VideoHeader header_of(int64_t num_frames, int64_t ticks, int64_t tick_den) {
  return {.width = 16,
          .height = 16,
          .num_frames = num_frames,
          .ticks = ticks,
          .tick_num = 1,
          .tick_den = tick_den};
}

std::string said_of_video(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("videos: frames are spread over the file, by its duration") {
  const auto frames = [](int64_t num_frames, int64_t ticks, int64_t most = 128, double fps = 2) {
    return sampled_frames(header_of(num_frames, ticks, 10), {fps, most}, "v.mp4");
  };
  CHECK(frames(20, 20) == Numbers{0, 6, 12, 19});
  CHECK(frames(20, 20, 3) == Numbers{0, 9, 19});
  CHECK(frames(20, 20, 128, 100) == frames(20, 1000));  // every frame, once
  CHECK(frames(20, 1000).size() == 20);
  CHECK(frames(20, 1) == Numbers{0});
  CHECK(frames(1, 100) == Numbers{0});
  CHECK(frames(20, 24) == Numbers{0, 6, 12, 19});  // 4.8 frames
}

TEST_CASE("videos: headers without usable values are refused") {
  const auto said = [](const VideoHeader& header) {
    return said_of_video([&] { sampled_frames(header, {}, "v.mp4"); });
  };
  CHECK(said(header_of(20, 20, 10)).empty());
  CHECK_SAYS(said(header_of(20, 0, 10)), "v.mp4: the file's header says 20 frames and no usable");
  CHECK_SAYS(said(header_of(20, -5, 10)), "no usable duration");
  CHECK_SAYS(said(header_of(20, 5, 0)), "no usable duration");
  CHECK_SAYS(said(header_of(int64_t{1} << 40, 5, 1)), "no usable duration");
  CHECK_SAYS(said(header_of(20, (int64_t{1} << 60) + 1, 1)), "no usable duration");
}

TEST_CASE("videos: other files are refused with their path") {
  if (const VideoDecoder decoder = find_video_decoder(); decoder.ffmpeg.empty()) {
    MESSAGE("there is no decoder of videos: " << decoder.why_none);
    CHECK_THROWS_AS(VideoFile("/proc/self/exe"), NoVideoDecoder);
    return;
  }
  const testing::TemporaryFolder folder;
  const std::string list = "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n/etc/passwd\n";
  for (const std::string& bytes : {std::string(), std::string("text"), list,
                                   "ffconcat version 1.0\nfile /etc/passwd\n" + list}) {
    const std::string path = folder.write("v.mp4", bytes);
    const std::string said = said_of_video([&] { VideoFile{path}; });
    CHECK_SAYS(said, path + ": the video cannot be read: it is no video in a container");
    CHECK_SAYS(said_of_video([&] { sample_video(path, {}); }), path);
  }
  CHECK_SAYS(said_of_video([&] { VideoFile(folder / "none.mp4"); }), "none.mp4");
}

}  // namespace longspan
