// The number of layers whose feed-forward tensors gradient checkpointing keeps, so that the
// backward does not recompute them: as many as memory allows. No torch.
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
  int64_t count = 0;   // of the layers with something to keep, the last `count`
  std::string reason;  // a sentence for users; empty if there was no choice
};

/// Returns the number if the configuration alone determines it; nullopt: as many as fit.
std::optional<KeptLayers> said_kept_layers(const ModelSettings& model_settings,
                                           const MemorySettings& memory, const ModelSpec& model,
                                           bool cuda);

/// Returns the largest number that fits into `bytes` of a rank: of the device; on a CPU of device
/// and host together. `facts`: of the run; its own number of kept layers is ignored.
KeptLayers kept_layers_that_fit(MemoryFacts facts, const ModelSpec& model, int64_t bytes);

/// Sets the number of kept layers in `facts`, for each kind in the model's pattern.
void keep_layers(MemoryFacts& facts, const ModelSpec& model, int64_t count);

}  // namespace longspan
