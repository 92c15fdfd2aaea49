// The work of a vision tower, shared out over the ranks of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/rows/picture.h"

namespace longspan {

/// A temporal patch of a picture of the row. The tower attends within it alone.
struct PictureFrame {
  size_t picture;  // its index in RowPictures::pictures
  int64_t t;
};

struct PictureShares {
  /// The frames of each rank, in the order of the row. Their features follow each other.
  std::vector<std::vector<PictureFrame>> frames;
  /// For each feature of the row: the rank that computes it, and its index there.
  std::vector<int32_t> rank;
  std::vector<int64_t> index;
};

/// Returns the cost of a frame of this many patches.
using FrameCost = std::function<double(int64_t num_patches)>;

/// Gives each frame, the most costly first, to the rank with the least work so far (LPT, Graham
/// 1969). Every rank computes the same shares.
PictureShares share_pictures(const RowPictures& pictures, int num_ranks, const FrameCost& cost);

/// Returns the features that this rank's tokens want, [F, E], in their order. `own_fE`: the
/// features of this rank's frames. Differentiable: the gradients of a feature are summed on the
/// rank that computed it. Every rank must need the gradient, or none. Collective.
at::Tensor exchange_features(const at::Tensor& own_fE, const PictureShares& shares,
                             const RowPictures& pictures, const Group& group);

}  // namespace longspan
