// Mistral 7B (arXiv 2310.06825), Mistral Nemo, Mistral Small: Llama without biases, the first of
// them with a sliding window in all layers.
#include <fmt/format.h>

#include <optional>

#include "longspan/models/family.h"

namespace longspan {
namespace {

constexpr int64_t kDefaultWindow = 4096;  // transformers' for this family; null is none

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  config.window = keys.json().contains("sliding_window") ? keys.optional<int64_t>("sliding_window")
                                                         : kDefaultWindow;
  if (config.window && *config.window <= 0) {
    keys.fail(fmt::format("sliding_window is {}, it must be positive, or null for full attention",
                          *config.window));
  }
}

}  // namespace

extern const Family kMistral{
    "mistral", "Mistral 7B, Nemo, Small", "MistralForCausalLM", false, 1e-6, 131072, read_own_keys};

}  // namespace longspan
