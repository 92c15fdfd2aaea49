#include "longspan/account/kept_layers.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/config/config.h"
#include "longspan/settings/choices.h"
#include "longspan/text/bytes.h"

namespace longspan {
namespace {

int64_t bytes_of_rank(const MemoryFacts& facts) {
  const MemoryAccount account = account_of(facts);
  return account.device + (facts.cuda ? account.beside_tensors : account.host);
}

}  // namespace

std::optional<KeptLayers> said_kept_layers(const ModelSettings& model_settings,
                                           const MemorySettings& memory, const ModelSpec& model,
                                           bool cuda) {
  const int64_t most = num_saving_layers(model);
  // These settings save or recompute tensors regardless of the free memory.
  if (model_settings.disable_gradient_checkpointing || memory.tiled_mlp || most == 0)
    return KeptLayers{};
  if (!memory.kept_mlp_layers) {
    // Users who offload activations want the memory for something else. With full_determinism,
    // results must not depend on the free memory.
    const bool offloads = activations_offloaded_to(memory) != OffloadedTo::kNowhere;
    const bool by_itself = cuda && !offloads && !model_settings.full_determinism;
    return by_itself ? std::nullopt : std::optional(KeptLayers{});
  }
  if (*memory.kept_mlp_layers < 0) return std::nullopt;
  const int64_t count = std::min(most, *memory.kept_mlp_layers);
  if (count == 0) return KeptLayers{};
  return KeptLayers{count, fmt::format("Gate and up are kept of {} of {} layers (kept_mlp_layers).",
                                       count, model.num_layers)};
}

KeptLayers kept_layers_that_fit(MemoryFacts facts, const ModelSpec& model, int64_t bytes) {
  int64_t count = num_saving_layers(model);
  const auto needed = [&] {
    keep_layers(facts, model, count);
    return bytes_of_rank(facts);
  };
  int64_t with = needed();
  while (count > 0 && with > bytes) {
    --count;
    with = needed();
  }
  const std::string of =
      fmt::format("{} of {}", count == 0 ? "none" : fmt::format("{}", count), model.num_layers);
  return {count, fmt::format("Gate and up are kept of {} layers: a rank {} {} of {}, by the "
                             "account.",
                             of, count == 0 ? "takes" : "then takes", name_bytes(with),
                             name_bytes(bytes))};
}

void keep_layers(MemoryFacts& facts, const ModelSpec& model, int64_t count) {
  for (MemoryFacts::Layers& layers : facts.layers) layers.kept = 0;
  for (const int64_t layer : last_saving_layers(model, count)) {
    facts.layers[static_cast<size_t>(layer % std::ssize(model.pattern))].kept += 1;
  }
}

}  // namespace longspan
