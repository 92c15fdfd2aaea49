#include "longspan/spec/file_tensors.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "longspan/spec/layer_parameters.h"

namespace longspan {
namespace {

/// Tensors that files of any family may have, and no model here reads.
struct UnreadTensors {
  std::string_view begin, end;  // of their names
};
constexpr UnreadTensors kUnread[] = {
    // Layers beside the model that predict further tokens, as Qwen's hybrids have them. No loss
    // here trains these.
    {.begin = kFurtherTokensPrefix, .end = ""},
    // Rotary frequencies, which older versions of transformers saved in each layer. They follow
    // from config.json.
    {.begin = "", .end = ".rotary_emb.inv_freq"},
};

}  // namespace

bool is_redundant_tensor(const ModelSpec& model, const std::string& stored_name) {
  for (int64_t i = 0; i < model.extra_layers; ++i) {
    if (stored_name.starts_with(layer_parameter_name(model.num_layers + i, ""))) return true;
  }
  if (model.tied_head && stored_name == kHeadName) return true;
  return std::ranges::any_of(kUnread, [&](const UnreadTensors& unread) {
    return stored_name.starts_with(unread.begin) && stored_name.ends_with(unread.end);
  });
}

std::optional<std::string> layer_of_tensor(const std::string& stored_name) {
  if (!stored_name.starts_with(kLayersPrefix)) return std::nullopt;
  const std::string rest = stored_name.substr(kLayersPrefix.size());
  return rest.substr(0, rest.find('.'));
}

}  // namespace longspan
