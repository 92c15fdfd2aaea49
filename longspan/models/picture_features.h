// Features of pictures, as the decoder merges them into a row.
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
/// (feature_rows), D: model dim, n: layers that get features of their own (deepstack, Qwen3-VL,
/// arXiv 2511.21631).
class PictureFeatures {
 public:
  virtual ~PictureFeatures() = default;
  /// Returns the features of this process's tokens in their order, [F, D * (1 + n)]: those of the
  /// embedding, then those of the first n layers. Differentiable. Undefined: neither this row nor
  /// a reduction of gradients needs them. The processes that share the row call it together, and
  /// with sharded parameters those that share these.
  virtual at::Tensor of(const Batch& row) = 0;
  /// Turns adapters among the parameters on or off.
  virtual void use_adapters(bool on) = 0;
};

}  // namespace longspan
