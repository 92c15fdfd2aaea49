// Of how many layers gradient checkpointing keeps what the feed-forward saves, so that the backward
// does not compute it again: as many as memory allows. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/plan/memory_model.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

struct KeptLayers {
  int64_t count = 0;   // of those that have something to keep, the last ones
  std::string reason;  // a sentence for users; empty where there was nothing to choose
};

/// What the configuration says alone; none: as many as fit.
std::optional<KeptLayers> said_kept_layers(const Config& config, const ModelSpec& model, bool cuda);

/// As many as fit into so many bytes of a rank: of the device, and of the host as well where both
/// are one memory. `facts`: of the run; what they say of kept layers is no matter.
KeptLayers kept_layers_that_fit(MemoryFacts facts, const ModelSpec& model, int64_t bytes);

/// Sets how many layers keep it, of each kind in the model's pattern.
void keep_layers(MemoryFacts& facts, const ModelSpec& model, int64_t count);

}  // namespace longspan
