// Chooses the number of kept layers. In a kept layer, gradient checkpointing keeps the
// feed-forward's tensors from the forward to the backward, instead of recomputing them. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/account/memory_model.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct MemorySettings;
struct ModelSettings;

struct KeptLayers {
  int64_t count = 0;   // kept layers: the last layers with tensors to keep
  std::string reason;  // a sentence for users; empty if there was no choice
};

/// Returns the number of kept layers if the configuration alone determines the number; nullopt: the
/// number is the largest that memory allows.
std::optional<KeptLayers> said_kept_layers(const ModelSettings& model_settings,
                                           const MemorySettings& memory, const ModelSpec& model,
                                           bool cuda);

/// Returns the largest number of kept layers for which a rank's peak memory is at most `bytes`
/// (device memory; on a CPU, device and host memory together). Ignores the number of kept layers in
/// `facts`.
KeptLayers kept_layers_that_fit(MemoryFacts facts, const ModelSpec& model, int64_t bytes);

/// Sets the number of kept layers in `facts`, for each kind in the model's pattern.
void keep_layers(MemoryFacts& facts, const ModelSpec& model, int64_t count);

}  // namespace longspan
