// The interface of liblongspan_video.so (video/entry.cpp), which decodes video files by FFmpeg's
// libraries. The program loads the shared object when a row has a video file. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// Facts about a file's first video stream, from the file's header and its first packets.
struct VideoHeader {
  int64_t width = 0, height = 0;  // pixels, without the rotation that the file may ask for
  int64_t num_frames = 0;         // 0: the header does not give the number
  // Duration of the stream: ticks * tick_num / tick_den seconds. tick_num 0: unknown.
  int64_t ticks = 0, tick_num = 0, tick_den = 1;
  // Mean frames per second. rate_num 0: unknown.
  int64_t rate_num = 0, rate_den = 1;
};

/// The reason of a failure, as text.
struct VideoTrouble {
  char text[512] = {};
};

/// A video file that is open for decoding.
struct OpenVideo;

/// A step of decoding.
enum class VideoStep : int { kFrame, kEnd, kTrouble };

struct VideoEntry {
  const char* ffmpeg;  // version
  /// Opens a file, given as a descriptor that stays open and belongs to the caller, at its first
  /// frame. Returns nullptr and fills `trouble`: an unknown container or codec, broken data, no
  /// video stream, frames of more than `most_pixels` pixels.
  OpenVideo* (*open)(int descriptor, int64_t most_pixels, VideoHeader* header,
                     VideoTrouble* trouble);
  void (*close)(OpenVideo* video);
  /// Counts the packets of frames up to the end of the file, without decoding. Returns -1 and fills
  /// `trouble` on an error. Afterwards, only `close` may be called.
  int64_t (*count_packets)(OpenVideo* video, VideoTrouble* trouble);
  /// Decodes the next frame.
  VideoStep (*next)(OpenVideo* video, VideoTrouble* trouble);
  /// Writes the decoded frame as RGB, 3 bytes a pixel without padding. Returns false and fills
  /// `trouble` on an error.
  bool (*rgb)(OpenVideo* video, uint8_t* to, VideoTrouble* trouble);
};

}  // namespace longspan
