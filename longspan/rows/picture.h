// A picture or video in a sample. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/spec/picture_grid.h"

namespace longspan {

/// A picture, or the frames of a video, by its files. Its pixels are read when a row is computed.
struct Picture {
  std::vector<std::string> files;  // one picture, or a video's frames in order
  bool is_video = false;
  PictureGrid grid;          // of its patches
  int64_t num_features = 0;  // rows of the vision tower's output: tokens of the picture
  bool operator==(const Picture&) const = default;
};

/// Column of a sample: for each token, the index of its feature among the features of the sample's
/// pictures, which follow each other in order; -1: the token has none. int64, padding -1.
inline constexpr const char* kFeatureColumn = "feature";

}  // namespace longspan
