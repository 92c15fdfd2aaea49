// Tensors in files of a model that none of its parameters is stored in. Files come from others, and
// say what such a tensor is by its name alone: the one place that goes by a piece of a name.
// No torch.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// How names of tensors begin in Hugging Face's files: in a model, and, of texts and pictures, as
/// transformers 5 names all that are supported, in its language model and in what sees pictures.
inline constexpr std::string_view kModelPrefix = "model.",
                                  kLanguagePrefix = "model.language_model.",
                                  kVisionPrefix = "model.visual.";
/// In layers beside the model that predict further tokens.
inline constexpr std::string_view kFurtherTokensPrefix = "mtp.";

/// Does a file of the model's weights hold this tensor to no use? Older ones carry the rotary
/// frequencies, some the head though it is the embedding, and some layers that are no part of the
/// model.
bool is_redundant_tensor(const ModelSpec& model, const std::string& stored_name);

/// The number of the layer that a tensor of the model's files belongs to, as it is written there;
/// none: it is outside.
std::optional<std::string> layer_of_tensor(const std::string& stored_name);

}  // namespace longspan
