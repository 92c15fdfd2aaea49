// The interface by which the decoder gets the features of a row's pictures.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "longspan/rows/batch.h"

namespace longspan {

/// Reads pixels: returns the patches of temporal patch `t` of a picture, fp32 [h * w, X]
/// (vision/vision_tower.h). Throws UserError.
using FramePatches = std::function<at::Tensor(const Picture& picture, int64_t t)>;

/// Computes the features of a row's pictures. F: tokens of this process with a feature
/// (feature_rows), D: model dim, n: layers with their own features (deepstack, Qwen3-VL, arXiv
/// 2511.21631).
class PictureFeatures {
 public:
  virtual ~PictureFeatures() = default;
  /// Returns the features of this process's tokens, in the order of the tokens, [F, D * (1 + n)]:
  /// the features for the embedding, then the features for the first n layers. Differentiable.
  /// Undefined: neither this row nor a reduction of gradients needs features. Collective over the
  /// processes that share the row; with sharded parameters, also over the processes that shard the
  /// parameters.
  virtual at::Tensor of(const Batch& row) = 0;
  /// Turns adapters among the parameters on or off.
  virtual void use_adapters(bool on) = 0;
};

}  // namespace longspan
