#include "longspan/session/picture_files.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <optional>

#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/files/checksum.h"
#include "longspan/input/input_file.h"
#include "longspan/pictures/frame_reader.h"
#include "longspan/pictures/picture.h"

namespace longspan {
namespace {

/// Reads the pixels of a run's pictures. Thread-safe.
class PictureFiles {
 public:
  explicit PictureFiles(const Config& config)
      : folder_(config.model.model_name_or_path),
        max_pixels_(config.data.image_max_pixels),
        min_pixels_(config.data.image_min_pixels),
        video_limits_{config.data.video_max_pixels, config.data.video_min_pixels} {}

  at::Tensor patches(const Picture& picture, int64_t t) {
    const PictureProcessor& processor = this->processor();
    try {
      return patches_of(picture, t, processor);
    } catch (const UserError& error) {
      if (picture.record.text.empty()) throw;
      throw UserError(fmt::format("{}: {}", picture.record.text, error.what()));
    }
  }

 private:
  at::Tensor patches_of(const Picture& picture, int64_t t, const PictureProcessor& processor) {
    if (picture.is_video) return patches_of_video(picture, t, processor);
    const std::string& path = picture.files.front();
    return pixel_values(read(path, picture.checksum), path, processor,
                        limits_for(processor, max_pixels_, min_pixels_))
        .patches_PX;
  }
  const PictureProcessor& processor() {
    const std::lock_guard lock(mutex_);
    if (!processor_) processor_ = load_picture_processor(folder_);
    return *processor_;
  }
  static std::string read(const std::string& path, uint64_t checksum) {
    std::string bytes = InputFile(path, "picture").read_all(kAnySize);
    Xxh64 hash;
    hash.add(bytes.data(), bytes.size());
    if (hash.value() != checksum) {
      throw UserError(
          fmt::format("{}: the picture has changed since it was first read. Leave pictures as they "
                      "are during a run.",
                      path));
    }
    return bytes;
  }
  at::Tensor patches_of_video(const Picture& video, int64_t t, const PictureProcessor& processor) {
    std::vector<Raster> frames;
    const int64_t first = t * processor.temporal_patch_size;
    if (!video.frames.empty()) {
      const std::string& path = video.files.front();
      const auto begin = video.frames.begin() + first;
      for (Raster& frame : frame_reader_.read(path, video.version,
                                              {begin, begin + processor.temporal_patch_size})) {
        frames.push_back(limited(std::move(frame), video_limits_, path));
      }
      return frame_patches(frames, processor, video.grid);
    }
    for (int64_t i = first; i < first + processor.temporal_patch_size; ++i) {
      const auto number = static_cast<size_t>(i);
      const std::string& path = video.files.at(number);
      const std::string bytes = read(path, video.file_checksums.at(number));
      frames.push_back(limited_picture(bytes, path, video_limits_));
    }
    return frame_patches(frames, processor, video.grid);
  }

  std::string folder_;
  int64_t max_pixels_, min_pixels_;
  PictureLimits video_limits_;
  std::mutex mutex_;
  std::optional<PictureProcessor> processor_;
  FrameReader frame_reader_;
};

}  // namespace

FramePatches frame_patches_of(const Config& config, const FramePatches& given) {
  if (given) return given;
  const auto files = std::make_shared<PictureFiles>(config);
  return [files](const Picture& picture, int64_t t) { return files->patches(picture, t); };
}

}  // namespace longspan
