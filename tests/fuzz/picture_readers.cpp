// Readers of files of pictures and videos, and of a model's picture processor.
#include "longspan/pictures/frame_reader.h"
#include "longspan/pictures/picture_processor.h"
#include "longspan/pictures/raster.h"
#include "longspan/pictures/resample.h"
#include "longspan/pictures/video_sample.h"
#include "tests/fuzz/fuzz.h"

namespace longspan {
namespace {

constexpr int64_t kPixels = 1 << 20;

FUZZ_READER(pictures) {
  const PictureSize size = picture_size(input, "row 1", kPixels);
  fuzz::require(size.width > 0 && size.height > 0 && size.width * size.height <= kPixels,
                "the header's size is within the limit");
  const Raster raster = decode_picture(input, "row 1", kPixels);
  fuzz::require(raster.size == size, "the header has the picture's size");
  fuzz::require(static_cast<int64_t>(raster.pixels.size()) ==
                    size.width * size.height * bytes_per_pixel(raster.mode),
                "every pixel is there");
  fuzz::require(raster.palette.size() <= 3 * 256, "a palette has at most 256 colours");
  for (const ResizeStep& step : limiting_steps(size, {.max_pixels = 4096}, "row 1")) {
    if (step.size.width * step.size.height <= kPixels) resized(raster, step.size);
  }
  to_rgb(raster);
}

/// Without FFmpeg's headers there is no decoder to test.
FUZZ_READER(videos) {
  constexpr int64_t kFramePixels = 1 << 16;
  const fuzz::Folder folder;
  const std::string path = folder.write("v.mp4", input);
  const VideoSample sample = sample_video(path, {.fps = 2, .most_frames = 16}, kFramePixels);
  fuzz::require(sample.size.width > 0 && sample.size.height > 0 &&
                    sample.size.width * sample.size.height <= kFramePixels,
                "a frame's size is within the limit");
  fuzz::require(!sample.frames.empty() && sample.frames.size() <= 16, "some frames are chosen");
  fuzz::require(sample.times.size() >= sample.frames.size(), "every frame has a time");
  fuzz::require(sample.fps > 0, "time passes");
  // A header is completed by frames, which a smaller limit on their pixels may leave out.
  const VideoFile file(path);
  if (PictureSize{file.header().width, file.header().height} != sample.size) return;
  FrameReader reader;
  for (const Raster& frame : reader.read(path, file.version(), sample.frames)) {
    fuzz::require(frame.size == sample.size, "every frame has the video's size");
  }
}

/// preprocessor_config.json, then processor_config.json.
FUZZ_READER(picture_processor) {
  const std::vector<std::string> parts = fuzz::pieces(input, 2);
  const fuzz::Folder folder;
  folder.write("preprocessor_config.json", parts[0]);
  if (!parts[1].empty()) folder.write("processor_config.json", parts[1]);
  const PictureProcessor processor = load_picture_processor(folder.path());
  for (const PictureSize size : {PictureSize{1, 1}, {640, 480}, {13, 2600}, {100'000, 1000}}) {
    const PictureGrid grid = grid_of(size, processor);
    fuzz::require(grid.h > 0 && grid.w > 0, "every picture has patches");
  }
}

}  // namespace
}  // namespace longspan
