// Mistral 7B (arXiv 2310.06825) since v0.2, Mistral Nemo, Mistral Small: Llama without biases.
// Their first model attends in windows, which is refused.
#include <fmt/format.h>

#include <optional>

#include "longspan/models/family.h"

namespace longspan {
namespace {

constexpr int64_t kDefaultWindow = 4096;  // transformers' for this family; null is none

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  const std::optional<int64_t> window = keys.json().contains("sliding_window")
                                            ? keys.optional<int64_t>("sliding_window")
                                            : kDefaultWindow;
  if (!window || *window >= config.max_position_embeddings) return;
  keys.fail(fmt::format(
      "sliding_window {}{} is smaller than max_position_embeddings {}: windows are not supported, "
      "attention is always full. Set sliding_window to null to train with full attention, which "
      "is the same for rows (cutoff_len) of at most {} tokens",
      *window, keys.json().contains("sliding_window") ? "" : " (the default of this family)",
      config.max_position_embeddings, *window));
}

}  // namespace

extern const Family kMistral{
    "mistral",    "Mistral 7B v0.2, v0.3, Nemo, Small", "MistralForCausalLM", false, 1e-6, 131072,
    read_own_keys};

}  // namespace longspan
