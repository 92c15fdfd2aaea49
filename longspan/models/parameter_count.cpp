#include "longspan/models/parameter_count.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <variant>
#include <vector>

namespace longspan {
namespace {

/// Each size once, in the order of the layers.
std::vector<std::string> sizes_of_feed_forwards(const ModelSpec& model) {
  std::vector<std::string> sizes;
  const FeedForwardSpec* last = nullptr;
  for (const LayerSpec& layer : model.pattern) {
    if (last != nullptr && *last == layer.feed_forward) continue;
    last = &layer.feed_forward;
    const std::string text = std::visit([](const auto& part) { return sizes_in(part); }, *last);
    if (std::ranges::find(sizes, text) == sizes.end()) sizes.push_back(text);
  }
  return sizes;
}

}  // namespace

std::string describe_sizes(const ModelSpec& model) {
  return fmt::format("vocab_size {}, hidden_size {}, {} and num_hidden_layers {}", model.vocab_size,
                     model.hidden_size, fmt::join(sizes_of_feed_forwards(model), ", "),
                     model.num_layers);
}

int64_t parameter_count(const ModelSpec& model) {
  std::string heads;
  for (const auto& [attention, number] : attentions_of(model)) {
    if (!heads.empty()) break;  // other mixers mostly have as many
    heads = fmt::format(" and {} heads of {} (num_key_value_heads {})", attention.num_heads,
                        attention.key_dim, attention.num_kv_heads);
  }
  return num_parameters_of(model, fmt::format("a model with {}{}", describe_sizes(model), heads));
}

}  // namespace longspan
