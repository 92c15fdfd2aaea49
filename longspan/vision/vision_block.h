// A block of a vision tower: attention within runs of patches, then an MLP. P: patches, D: width,
// N: heads, H: head dim, I: width of the MLP.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/kernels/linear.h"
#include "longspan/kernels/rope.h"
#include "longspan/memory/activation_store.h"
#include "longspan/spec/vision_spec.h"
#include "longspan/vision/patch_layout.h"
#include "longspan/vision/unit_op.h"

namespace longspan {

/// A norm's weight and, of a LayerNorm, its bias.
struct VisionNorm {
  VisionSpec::Norm kind = VisionSpec::Norm::kLayerNorm;
  double eps = 0;
  at::Tensor weight_D, bias_D;

  struct Result {
    at::Tensor y_PD;    // the normed rows
    at::Tensor mean_P;  // undefined for an RMSNorm
    at::Tensor rstd_P;  // reciprocal of the standard deviation or of the root mean square
  };
  /// Returns the rows normed in fp32 or fp64, as `dtype`.
  Result forward(const at::Tensor& h_PD, at::ScalarType dtype) const;
  /// Returns the norm's part of d loss / d h plus `residual_PD`, in the dtype of h. Adds gradients
  /// of trained parameters. `result`: of forward().
  at::Tensor backward(const at::Tensor& dy_PD, const at::Tensor& h_PD, const Result& result,
                      const at::Tensor& residual_PD) const;
};

/// The parameters of a block.
struct VisionBlockWeights {
  VisionNorm attention_norm, mlp_norm;
  Linear query, key, value, output;
  std::vector<Linear> mlp;  // two, or gate, up, down

  std::vector<at::Tensor> parameters() const;
};

/// Data that all blocks of a pass share.
struct VisionPass {
  const VisionSpec& vision;
  at::ScalarType compute_dtype;
  PatchLayout layout;
  RotaryTable rotary;  // undefined tensors: queries and keys are not rotated
  const BlockKernel& kernel;
  /// True: saves the inner activations of each block (q, k, v, and the activations of the MLP).
  /// False: the backward computes the inner activations again.
  bool keeps_inner;
  ActivationStore* store;  // of h, out and lse, unless keeps_inner; null: on the device
};

/// Returns the block's operation on h_PD. It saves h, the attention's output and its log-sum-exp,
/// and computes the MLP by chunks of rows.
std::unique_ptr<UnitOp> vision_block(std::shared_ptr<const VisionPass> pass,
                                     VisionBlockWeights weights, bool is_full);

}  // namespace longspan
