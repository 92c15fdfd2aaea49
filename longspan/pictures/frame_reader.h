// Reads frames of video files; fast if the caller asks for frames in order. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "longspan/pictures/video_file.h"

namespace longspan {

/// Decodes frames of video files. The two most recently used files stay open, each at its next
/// frame. Therefore calls that ask for frames in order decode a file in one pass. Only requested
/// frames are converted to RGB. Thread-safe.
class FrameReader {
 public:
  /// Returns frames of a file. `frames`: the numbers of the frames, ascending. A number that occurs
  /// several times is decoded once. `version`: VideoFile::version() when the frames were chosen.
  /// Throws UserError as VideoFile does, if the file has changed, and if the file has fewer frames.
  std::vector<Raster> read(const std::string& path, uint64_t version,
                           const std::vector<int64_t>& frames);

 private:
  std::unique_ptr<VideoFile> take(const std::string& path, int64_t frame);
  void give_back(std::unique_ptr<VideoFile> video);

  std::mutex mutex_;
  std::vector<std::unique_ptr<VideoFile>> idle_;  // open files, the most recently used file last
};

/// Decodes frames of a file and drops them. Throws as FrameReader::read() does.
void require_frames(const std::string& path, uint64_t version, const std::vector<int64_t>& frames);

}  // namespace longspan
