// Tensors in files of a model that none of its parameters is stored in. Files come from others, and
// say what such a tensor is by its name alone: the one place that goes by a piece of a name.
// No torch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// What the files of a model of texts and pictures call the tensors of its language model, whose
/// own names begin with `model.` and `lm_head.`, and those of its other parts.
struct CompositeNames {
  std::string_view model, head;                // beginnings in their place
  std::span<const std::string_view> pictures;  // beginnings of the other parts' names
};
/// Qwen's, from transformers 5 on; and those of models that are made as LLaVA is.
extern const CompositeNames kQwenCompositeNames, kLlavaCompositeNames;

/// How names begin in the files of a language model alone.
inline constexpr std::string_view kModelPrefix = "model.", kHeadPrefix = "lm_head.";

/// Does a file of the model's weights hold this tensor to no use? Older ones carry the rotary
/// frequencies, some the head though it is the embedding, and some layers that are no part of the
/// model.
bool is_redundant_tensor(const ModelSpec& model, const std::string& stored_name);

/// Is it a tensor of layers that predict further tokens, beside the model or behind its last layer?
/// Redundant as well, since no loss here trains these.
bool predicts_further_tokens(const ModelSpec& model, const std::string& stored_name);

/// The number of the layer that a tensor of the model's files belongs to, as it is written there;
/// none: it is outside.
std::optional<std::string> layer_of_tensor(const std::string& stored_name);

}  // namespace longspan
