// The frames of a video file that a model sees, as LLaMA-Factory 0.9.5 chooses them by PyAV. No
// torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/pictures/video_file.h"

namespace longspan {

/// The keys video_fps and video_maxlen.
struct VideoSampling {
  double fps = 2;
  int64_t most_frames = 128;
};

/// The frames that a model sees of a video file.
struct VideoSample {
  PictureSize size;  // of a frame, in pixels
  /// Numbers of the chosen frames in the file, ascending; at least one number.
  std::vector<int64_t> frames;
  /// Time of each frame, in seconds. Further times may follow, of sampled frames that are missing
  /// in the file.
  std::vector<double> times;
  double fps = 0;  // frames per second of the chosen frames
};

/// Reads a file's header and packets, and chooses frames. Decodes the file, up to most_frames
/// frames, only if the header does not give the number of frames. Throws as VideoFile does. Also
/// throws UserError for a header without duration or frame rate, and for a video with fewer frames
/// than the header gives.
VideoSample sample_video(const std::string& path, const VideoSampling& sampling,
                         int64_t most_pixels = kMostFramePixels);

/// Chooses frames by a header that gives the number of frames. Throws UserError, which begins with
/// `place`, for a header without duration and for impossible values.
std::vector<int64_t> sampled_frames(const VideoHeader& header, const VideoSampling& sampling,
                                    const std::string& place);

}  // namespace longspan
