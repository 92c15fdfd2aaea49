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
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";

/// Why a file of the model's weights may hold a tensor that is not read.
enum class LeftOut {
  kFurtherTokens,  ///< of layers that predict further tokens: no loss here trains these
  kFrequencies,    ///< rotary frequencies, which follow from config.json
  /// The head of a model whose embedding is the head. A head with numbers of its own is a parameter
  /// (with_own_head in models/own_head.h), and config.json does not say so.
  kTiedHead,
  kValueHead,  ///< in an adapter's file (is_of_value_head in checkpoint/adapter_matrices.h)
};

/// nullopt: the tensor must be that of a parameter.
std::optional<LeftOut> why_left_out(const ModelSpec& model, const std::string& stored_name);

/// The number of the layer that a tensor of the model's files belongs to, as it is written there;
/// none: it is outside.
std::optional<std::string> layer_of_tensor(const std::string& stored_name);

}  // namespace longspan
