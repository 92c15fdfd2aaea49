// Tensors in a model's files that are not parameters of the model. Only a tensor's name in the
// files identifies such a tensor. No other code tests parts of names. No torch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// Prefixes of tensor names in the files of a vision-language model, for its language model and for
/// its other parts. The files of a language model alone have the prefixes `model.` and `lm_head.`.
struct CompositeNames {
  /// `own`: a prefix of parameter names in the program. `stored`: the prefix that replaces `own` in
  /// files.
  struct Prefix {
    std::string_view own, stored;
  };
  std::string_view model, head;  // prefixes that replace model. and lm_head.
  /// Prefixes of the names of the other parts' tensors.
  std::span<const std::string_view> pictures;
  /// Prefixes of the vision tower's parameters. `own` begins with kVisionPrefix. Several entries
  /// may have the same `own`: saving uses the first of these entries, and reading accepts all of
  /// them. An entry whose `stored` is a prefix of another entry's `stored` comes after that entry.
  /// Empty: the tower is not supported.
  std::span<const Prefix> tower = {};
  /// Prefixes of module names in transformers: module_model for the language model, module_vision
  /// in place of kVisionPrefix. Files of adapters have these prefixes, and files of models may have
  /// these prefixes.
  std::string_view module_model = {}, module_vision = {};
};
/// Names of Qwen's models since Qwen3-VL; of Qwen2-VL and Qwen2.5-VL; of Gemma 3; of other models
/// with LLaVA's structure.
extern const CompositeNames kQwenCompositeNames, kQwen2VlCompositeNames, kGemma3CompositeNames,
    kLlavaCompositeNames;

/// Name prefixes in the files of a language model alone.
inline constexpr std::string_view kModelPrefix = "model.", kHeadPrefix = "lm_head.";
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";

/// The reason why a tensor in the weight files is not read.
enum class LeftOut {
  kFurtherTokens,  ///< layers for multi-token prediction, which no supported loss trains
  kFrequencies,    ///< rotary frequencies, which are computed from config.json
  /// The head of a model with a tied head. A head whose values differ from the embedding is a
  /// parameter instead (with_own_head in models/own_head.h), even if config.json ties the head.
  kTiedHead,
  kZeroBias,   ///< beside a matrix in 4 bits of a linear layer that has no bias
  kValueHead,  ///< in an adapter's file (is_of_value_head in checkpoint/adapter_matrices.h)
};

/// Returns why the tensor is not read; nullopt: the tensor must belong to a parameter.
std::optional<LeftOut> why_left_out(const ModelSpec& model, const std::string& stored_name);

/// Returns the text of the layer index in a tensor's name; nullopt outside the layers.
std::optional<std::string> layer_of_tensor(const std::string& stored_name);

}  // namespace longspan
