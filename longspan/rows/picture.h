// A picture or video in a sample. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/spec/picture_grid.h"

namespace longspan {

/// A picture, or the frames of a video, by its files. Its pixels are read when a row is computed.
struct Picture {
  /// One picture, or a video's frames in order; the last one is repeated to fill a temporal patch.
  std::vector<std::string> files;
  bool is_video = false;
  PictureGrid grid = {};     // of its patches
  int64_t num_features = 0;  // rows of the vision tower's output: tokens of the picture
  uint64_t checksum = 0;     // XXH64 of the file, or of the checksums of a video's frames
  bool is_two_way = false;   // its tokens in a row see each other (TwoWaySpan)
  bool operator==(const Picture&) const = default;
};

/// The pictures of a row, equal ones once. Their features follow each other.
struct RowPictures {
  std::vector<Picture> pictures;
  std::vector<int64_t> first_feature = {};  // of each picture
  int64_t num_features = 0;
  /// Set for a rank's share: for each rank that shares the row, the features of its tokens, in the
  /// order of the tokens.
  std::vector<std::vector<int64_t>> wanted = {};

  /// Returns the index of the picture's first feature. Adds the picture if it is new.
  int64_t add(const Picture& picture);
};

/// Column of a sample: for each token, the index of its feature among the features of the sample's
/// pictures, which follow each other in order; -1: the token has none. int64, padding -1.
inline constexpr const char* kFeatureColumn = "feature";

}  // namespace longspan
