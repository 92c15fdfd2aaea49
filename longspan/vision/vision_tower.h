// A vision tower (spec/vision_spec.h): single-device code on patches of frames, which follow each
// other without padding. P: patches, X: numbers of a patch, F: features, E: numbers of a feature.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "longspan/attention/block_kernel.h"
#include "longspan/memory/activation_store.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/parameters/parameter_hooks.h"
#include "longspan/spec/device_sizes.h"
#include "longspan/spec/picture_grid.h"
#include "longspan/spec/vision_spec.h"

namespace longspan {

struct VisionOptions {
  at::ScalarType compute_dtype = at::kFloat;  // as DecoderOptions::compute_dtype
  /// Computes the attention within frames and windows, on the parameters' device.
  const BlockKernel* kernel = &cpu_block_kernel();
  bool gradient_checkpointing = true;  // per block; the attention's output is saved in any case
  /// Stores the tensors that checkpointing saves; null: they stay on the device. Must outlive the
  /// tower and its graphs.
  ActivationStore* activation_store = nullptr;
  /// Called around every use of parameters; null: none. Must outlive the tower and its graphs.
  ParameterHooks* parameter_hooks = nullptr;
  int first_unit = 0;       // ModelSpec::vision_unit()
  double lora_scale = 0.0;  // for LoRA adapters among the parameters (models/lora.h)
  /// Limit of the bytes of pixels that exist at a time. A picture with more bytes is processed
  /// alone.
  int64_t part_bytes = kPixelPartBytes;
};

/// Reads the concatenated patches of the pictures [begin, end) of a pass, [P, X] in fp32, on the
/// parameters' device.
using PatchSource = std::function<at::Tensor(size_t begin, size_t end)>;

class VisionTower {
 public:
  /// Selects the tower's parameters by name from a model's parameters.
  VisionTower(const VisionSpec& vision, const std::vector<NamedTensor>& parameters,
              const VisionOptions& options);
  ~VisionTower();

  /// Returns the features of pictures, [F, E]: along dim 1, the merger's outputs, then the outputs
  /// of each deepstack merger. The pictures are read in order, in parts of
  /// VisionOptions::part_bytes. If the patch embedding trains and there are several parts, the
  /// backward reads the pictures again. Without pictures, parameters are used (and get gradients of
  /// zeros) in the same order. Differentiable; adds to the parameters' .grad.
  at::Tensor features(const PatchSource& patches, std::vector<PictureGrid> grids);
  /// The overload for patches in memory. patches_PX: the concatenated patches of the pictures,
  /// fp32.
  at::Tensor features(const at::Tensor& patches_PX, const std::vector<PictureGrid>& grids);

  /// Turns the adapters on or off.
  void use_adapters(bool on);

  const VisionSpec& spec() const;
  /// Whether any parameter of the tower trains.
  bool trains() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
