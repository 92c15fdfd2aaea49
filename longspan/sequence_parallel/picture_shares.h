// Distributes the work of a vision tower over the ranks of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/rows/picture.h"

namespace longspan {

/// A frame: one temporal patch of a picture of the row. The tower's attention stays within a frame.
struct PictureFrame {
  size_t picture;  // index in RowPictures::pictures
  int64_t t;
};

struct PictureShares {
  /// The frames of each rank, in the order of the row. A rank concatenates the features of its
  /// frames in this order.
  std::vector<std::vector<PictureFrame>> frames;
  /// For each feature of the row: the rank that computes the feature, and the feature's index on
  /// this rank.
  std::vector<int32_t> rank;
  std::vector<int64_t> index;
};

/// Returns the cost of a frame of `num_patches` patches, in any unit.
using FrameCost = std::function<double(int64_t num_patches)>;

/// Assigns the frames, the most costly first, each to the rank with the least work so far (LPT,
/// Graham 1969). Every rank computes the same shares.
PictureShares share_pictures(const RowPictures& pictures, int num_ranks, const FrameCost& cost);

/// Returns the features that this rank's tokens need, [F, E], in the order of the tokens. `own_fE`:
/// the features of this rank's frames. Differentiable: the backward sums the gradients of a feature
/// on the rank that computed the feature. Either every rank or no rank must need the gradient.
/// Collective.
at::Tensor exchange_features(const at::Tensor& own_fE, const PictureShares& shares,
                             const RowPictures& pictures, const Group& group);

}  // namespace longspan
