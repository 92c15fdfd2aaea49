// The encoding of pictures and videos for a model: sizes, tokens and positions. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "longspan/data/template_format.h"
#include "longspan/data/video_processor.h"
#include "longspan/pictures/picture_processor.h"
#include "longspan/pictures/video_sample.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

struct DataSettings;

/// Positions of a picture's tokens on the axes time, row and column.
enum class PicturePositions {
  kCounted,  ///< one axis: positions are 0, 1, 2, ...
  kGrid,     ///< Qwen2-VL: a step of time for each temporal patch of a video
  kSeconds,  ///< Qwen2.5-VL: steps of time in proportion to seconds
  kFrames,   ///< Qwen3-VL, Qwen3.5: each temporal patch as a picture, after its time stamp
};

/// A special token of a family: its text, and the key of its id in config.json.
struct PictureTokenName {
  std::string_view text;
  const char* key;
};
/// Special tokens of a picture in a row, and the text around them. video: empty in families that
/// take no videos.
struct PictureTokenNames {
  PictureTokenName image, video, begin, end;
  std::string_view around = {};
};

/// The form of pictures in the inputs of a model_type's models.
struct PictureFamily {
  std::string_view model_type;
  PicturePositions positions;
  const PictureTokenNames& tokens;
  /// Tokens of a picture see each other (TwoWaySpan).
  bool two_way = false;
  /// The models' own templates print only `begin` for a picture, not the picture's whole text.
  bool prints_begin = false;
};
/// Returns nullptr for a model_type that takes no pictures.
const PictureFamily* picture_family(std::string_view model_type);

/// A special token, with its text.
struct PictureToken {
  std::string text;
  int32_t id = 0;
};

/// Properties of a model that takes pictures, for the encoders of rows.
struct PictureEncoding {
  PictureProcessor processor;
  VideoProcessor video_processor;
  PictureLimits limits, video_limits;  // video_limits: of a frame
  VideoSampling video_sampling;
  /// Decode the chosen frames of each video file before training, to find broken frames.
  bool decodes_videos = false;
  PictureToken image, begin, end;     // begin, end: around the tokens of a picture
  std::optional<PictureToken> video;  // none: the model takes no videos
  std::string around;                 // text before `begin` and behind `end`
  bool two_way = false;               // as in PictureFamily
  bool prints_begin = false;
  PicturePositions positions = PicturePositions::kGrid;
  double tokens_per_second = 1;  // kSeconds
  /// Samples have kFeatureColumn even if no row of this call has pictures, because other rows of
  /// the run have pictures.
  bool in_every_sample = false;

  /// Returns the text of a picture or video before the repetition of its token.
  std::string text_of(bool is_video) const {
    return around + begin.text + (is_video ? video.value() : image).text + end.text + around;
  }
  /// The text that the model's own template prints in place of text_of(): the same, or shorter.
  std::string printed_of(bool is_video) const {
    return prints_begin ? begin.text : text_of(is_video);
  }
  bool stamps_frames() const { return positions == PicturePositions::kFrames; }
  /// The form of videos in the model's inputs.
  VideoForm videos() const {
    if (!video) return VideoForm::kNever;
    return stamps_frames() ? VideoForm::kFrames : VideoForm::kWhole;
  }
};

/// Reads a model's folder: config.json and the files of its processor. nullopt: the model_type
/// takes no pictures. Throws UserError if the tokenizer lacks the tokens, or if config.json names
/// other tokens.
std::optional<PictureEncoding> picture_encoding_of(const std::string& folder,
                                                   const Tokenizer& tokenizer,
                                                   const DataSettings& config);

}  // namespace longspan
