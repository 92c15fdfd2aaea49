#include "longspan/spec/file_tensors.h"

#include <cstdint>
#include <string_view>

#include "longspan/spec/layer_parameters.h"

namespace longspan {
namespace {

/// Prefix of the layers for multi-token prediction in the files of Qwen's hybrids.
constexpr std::string_view kBesideTheModel = "mtp.";
/// Rotary frequencies, which older versions of transformers saved in each layer. They follow from
/// config.json.
constexpr std::string_view kFrequencies = ".rotary_emb.inv_freq";

constexpr std::string_view kQwenPictures[] = {"model.visual."},
                           kQwen2VlPictures[] = {"visual.", "model.visual."},
                           kLlavaPictures[] = {"vision_tower.", "multi_modal_projector."};
constexpr CompositeNames::Prefix kQwenTower[] = {{"visual.", "model.visual."}},
                                 kQwen2VlTower[] = {{"visual.", "visual."},
                                                    {"visual.", "model.visual."}},
                                 // Published, by transformers 5, and in transformers' modules.
    kGemma3Tower[] = {{"visual.vision_tower.", "vision_tower.vision_model."},
                      {"visual.vision_tower.", "vision_tower."},
                      {"visual.vision_tower.", "model.vision_tower.vision_model."},
                      {"visual.vision_tower.", "model.vision_tower."},
                      {"visual.multi_modal_projector.", "multi_modal_projector."},
                      {"visual.multi_modal_projector.", "model.multi_modal_projector."}};

}  // namespace

const CompositeNames kQwenCompositeNames{.model = "model.language_model.",
                                         .head = "lm_head.",
                                         .pictures = kQwenPictures,
                                         .tower = kQwenTower,
                                         .module_model = "model.language_model.",
                                         .module_vision = "model.visual."};
const CompositeNames kQwen2VlCompositeNames{.model = "model.",
                                            .head = "lm_head.",
                                            .pictures = kQwen2VlPictures,
                                            .tower = kQwen2VlTower,
                                            .module_model = "model.language_model.",
                                            .module_vision = "model.visual."};
const CompositeNames kGemma3CompositeNames{.model = "language_model.model.",
                                           .head = "language_model.lm_head.",
                                           .pictures = kLlavaPictures,
                                           .tower = kGemma3Tower,
                                           .module_model = "model.language_model.",
                                           .module_vision = "model."};
const CompositeNames kLlavaCompositeNames{.model = "language_model.model.",
                                          .head = "language_model.lm_head.",
                                          .pictures = kLlavaPictures};

std::optional<LeftOut> why_left_out(const ModelSpec& model, const std::string& stored_name) {
  for (int64_t i = 0; i < model.extra_layers; ++i) {
    if (stored_name.starts_with(layer_parameter_name(model.num_layers + i, ""))) {
      return LeftOut::kFurtherTokens;
    }
  }
  if (stored_name.starts_with(kBesideTheModel)) return LeftOut::kFurtherTokens;
  if (stored_name.ends_with(kFrequencies)) return LeftOut::kFrequencies;
  if (model.tied_head && stored_name == kHeadName) return LeftOut::kTiedHead;
  return std::nullopt;
}

std::optional<std::string> layer_of_tensor(const std::string& stored_name) {
  if (!stored_name.starts_with(kLayersPrefix)) return std::nullopt;
  const std::string rest = stored_name.substr(kLayersPrefix.size());
  return rest.substr(0, rest.find('.'));
}

}  // namespace longspan
