// Frames of video files, for a reader who wants them in order. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "longspan/pictures/video_file.h"

namespace longspan {

/// Decodes frames of video files. The last two files stay open at their next frame, so frames that
/// are asked for in order are decoded in one pass. Only frames that are asked for are converted.
/// Thread-safe.
class FrameReader {
 public:
  /// Returns frames of a file. `frames`: their numbers, ascending; equal ones are decoded once.
  /// `version`: of the file when the frames were chosen. Throws UserError: as VideoFile, a file
  /// that has changed, a file without one of these frames.
  std::vector<Raster> read(const std::string& path, uint64_t version,
                           const std::vector<int64_t>& frames);

 private:
  std::unique_ptr<VideoFile> take(const std::string& path, int64_t frame);
  void give_back(std::unique_ptr<VideoFile> video);

  std::mutex mutex_;
  std::vector<std::unique_ptr<VideoFile>> idle_;  // the last one used is the last
};

}  // namespace longspan
