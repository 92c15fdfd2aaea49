// A vision tower (spec/vision_spec.h): single-device code on patches of frames, which follow each
// other without padding. P: patches, X: numbers of a patch, F: features, E: numbers of a feature.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/memory/activation_store.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_hooks.h"
#include "longspan/spec/picture_grid.h"
#include "longspan/spec/vision_spec.h"

namespace longspan {

struct VisionOptions {
  at::ScalarType compute_dtype = at::kFloat;  // as DecoderOptions::compute_dtype
  /// Computes the attention within frames and windows, on the parameters' device.
  const BlockKernel* kernel = &cpu_block_kernel();
  bool gradient_checkpointing = true;  // of each block; attention's output is saved all the same
  /// Stores the tensors that checkpointing saves; null: they stay on the device. Must outlive the
  /// tower and its graphs.
  ActivationStore* activation_store = nullptr;
  /// Called around every use of parameters; null: none. Must outlive the tower and its graphs.
  ParameterHooks* parameter_hooks = nullptr;
  int first_unit = 0;       // ModelSpec::vision_unit()
  double lora_scale = 0.0;  // for LoRA adapters among the parameters (models/lora.h)
};

class VisionTower {
 public:
  /// Takes its parameters by name among those of a model.
  VisionTower(const VisionSpec& vision, const std::vector<NamedTensor>& parameters,
              const VisionOptions& options);
  ~VisionTower();

  /// Returns the features of pictures, [F, E]: the merger's outputs, then those of each merger of
  /// deepstack along dim 1. patches_PX: fp32, of the pictures behind each other. Without pictures,
  /// parameters are used (and get gradients of zeros) in the same order. Differentiable; adds to
  /// the parameters' .grad.
  at::Tensor features(const at::Tensor& patches_PX, std::span<const PictureGrid> grids);

  /// Turns the adapters on or off.
  void use_adapters(bool on);

  const VisionSpec& spec() const;
  /// Whether any of its parameters trains.
  bool trains() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
