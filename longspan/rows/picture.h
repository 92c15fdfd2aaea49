// A picture or video in a sample. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/spec/picture_grid.h"

namespace longspan {

/// The place of a picture's record ("file, row 17"), for messages. All places compare equal.
struct RecordPlace {
  std::string text;
  bool operator==(const RecordPlace&) const { return true; }
};

/// A picture, or the frames of a video, named by files. The pixels are read during the computation
/// of a row.
struct Picture {
  /// One picture file, a video file, or a video's frames in order. The last frame is repeated to
  /// fill a temporal patch.
  std::vector<std::string> files;
  bool is_video = false;
  /// Numbers of the chosen frames of a video file, with the last one repeated as above; empty for
  /// other pictures.
  std::vector<int64_t> frames = {};
  uint64_t version = 0;   // of a video file: changes if the file is written (pictures/video_file.h)
  PictureGrid grid = {};  // of the patches
  int64_t num_features = 0;  // rows of the vision tower's output; one per token of the picture
  /// XXH64 of a picture's file, of the checksums of a video's frames, or of a video file's checksum
  /// and the frames' numbers.
  uint64_t checksum = 0;
  std::vector<uint64_t> file_checksums = {};  // XXH64 of each file of a list of frames
  bool is_two_way = false;  // the picture's tokens in a row see each other (TwoWaySpan)
  RecordPlace record = {};
  bool operator==(const Picture&) const = default;
};

/// The pictures of a row; equal pictures are listed once. The row's features are the concatenated
/// features of these pictures.
struct RowPictures {
  std::vector<Picture> pictures;
  std::vector<int64_t> first_feature = {};  // of each picture
  int64_t num_features = 0;
  /// Only in a rank's share: wanted[rank] has the features of that rank's tokens, in the order of
  /// the tokens, for each rank of the row's sequence-parallel group.
  std::vector<std::vector<int64_t>> wanted = {};

  /// Returns the index of the picture's first feature. Adds the picture if the row does not have
  /// the picture yet.
  int64_t add(const Picture& picture);
};

/// Column of a sample: for each token, the index of the token's feature among the concatenated
/// features of the sample's pictures; -1: the token has no feature. int64, padding -1.
inline constexpr const char* kFeatureColumn = "feature";

}  // namespace longspan
