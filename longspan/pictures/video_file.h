// Frames of a video file, by FFmpeg's libraries where they are installed. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/pictures/raster.h"
#include "longspan/pictures/video_entry.h"

namespace longspan {

/// Most pixels of a frame: a little more than 8192 x 4320. A decoder may hold some 17 frames.
inline constexpr int64_t kMostFramePixels = 36'000'000;

/// Thrown if this build or this machine cannot decode any video file.
class NoVideoDecoder : public UserError {
 public:
  using UserError::UserError;
};

/// The decoder that this process has.
struct VideoDecoder {
  std::string ffmpeg;    // its version; "": there is none
  std::string why_none;  // the reason
};
VideoDecoder find_video_decoder();

/// A video file, decoded from its first frame on.
class VideoFile {
 public:
  /// Reads the header. Throws NoVideoDecoder; UserError, which begins with the path: no such file,
  /// an unknown container or codec, a broken header, no video, frames of more than `most_pixels`.
  explicit VideoFile(const std::string& path, int64_t most_pixels = kMostFramePixels);

  const std::string& path() const { return file_.path(); }
  const VideoHeader& header() const { return header_; }
  /// Returns a number made from the file's size and time of the last write, which changes when the
  /// file is written.
  uint64_t version() const;

  /// Counts the packets of frames by reading the file to its end, without decoding. Afterwards, the
  /// object must not be used. Throws UserError.
  int64_t count_packets();
  /// The number of the frame that decode() decodes next.
  int64_t next() const { return next_; }
  /// Decodes the next frame; false: the video has ended. Throws UserError for broken data.
  bool decode();
  /// Returns the frame that was decoded last, in RGB. Throws UserError.
  Raster frame() const;

 private:
  struct Close {
    void operator()(OpenVideo* video) const;
  };
  [[noreturn]] void fail(const VideoTrouble& trouble) const;

  InputFile file_;
  VideoHeader header_;
  std::unique_ptr<OpenVideo, Close> video_;
  int64_t next_ = 0;
};

}  // namespace longspan
