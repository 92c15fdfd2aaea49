// What sets one model family apart from another. Everything else is shared code. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// What the files of a model of texts and pictures call the tensors of its language model, whose
/// own names begin with `model.`, and those of its other parts.
struct CompositeNames {
  std::string_view model;                      // in the place of `model.`
  std::string_view before_head;                // before kHeadName
  std::span<const std::string_view> pictures;  // beginnings of the other parts' names
};
/// Qwen's, from transformers 5 on; and those of models that are made as LLaVA is.
extern const CompositeNames kQwenCompositeNames, kLlavaCompositeNames;

/// A model of texts and pictures, whose config.json has the keys of the language model in
/// text_config, and whose files name its tensors otherwise (models/composite.h).
struct CompositeKind {
  const char* model_type;
  const char* architecture;
  const CompositeNames& names;
};

/// A family is one constant in its own file.
struct Family {
  const char* model_type;
  const char* models;  // of this type, as their makers call them; empty: as the type says
  const char* architecture;
  bool default_tie_word_embeddings;
  double default_rms_norm_eps;
  int64_t default_max_position_embeddings;
  /// Reads the keys of its layers into config.spec.pattern, with its own defaults. What is around
  /// the layers is read before: sizes of the vocabulary and of hidden states, number of layers, eps
  /// of norms, padding token, max_position_embeddings. Parts that families share are in
  /// models/layer_keys.h, models/rotary_keys.h and models/expert_keys.h.
  void (*read_layers)(const JsonObject& keys, ModelConfig& config);
  /// vocab_size where the file has none; empty: it must.
  std::optional<int64_t> default_vocab_size = std::nullopt;
  /// pad_token_id where the file has none; empty: then there is none.
  std::optional<int64_t> default_padding_token = std::nullopt;
  /// Models of texts and pictures whose language model is of this family.
  std::optional<CompositeKind> composite = std::nullopt;
  /// How files may store matrices, by a quantization_config of that quant_method; as plain numbers
  /// in any case.
  StoredNumbers::Format reads_quantized = StoredNumbers::Format::kPlain;
};

/// The register (families.cpp).
std::span<const Family* const> all_families();

/// Null where there is none of this model_type.
const Family* family_of_type(std::string_view model_type);

/// How files store the weights, by config.json (quantization_config): in a format that the family
/// reads; empty: not as quantization_config says. Throws UserError: numbers in fp8 other than e4m3,
/// and blocks that are none. `path`: for messages.
std::optional<StoredNumbers> read_stored(const Family& family, const nlohmann::json& config,
                                         const std::string& path);

/// "qwen2 (Qwen2, Qwen2.5), qwen3 and ...": what is supported, for messages.
std::string describe_families();

/// "qwen3_5, gemma3 and ...": models of texts and pictures whose language model is trained.
std::string describe_composites();

/// "qwen2, qwen3 or ...": their model types, for help.
std::string model_types();

}  // namespace longspan
