// What sets one model family apart from another. Everything else is shared code. No torch.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// A model of texts and pictures, whose config.json has the keys of the language model in
/// text_config, and whose files name its tensors otherwise (models/composite.h).
struct CompositeKind {
  const char* model_type;
  const char* architecture;
};

/// A family is one constant in its own file. It reads the keys that only it knows, with its own
/// defaults, after the common ones are read.
struct Family {
  const char* model_type;
  const char* models;  // of this type, as their makers call them; empty: as the type says
  const char* architecture;
  bool default_tie_word_embeddings;
  double default_rms_norm_eps;
  int64_t default_max_position_embeddings;
  void (*read_own_keys)(const JsonObject& keys, ModelConfig& config);
  /// partial_rotary_factor where the file has none, of families that read it; empty: those whose
  /// heads are always rotated whole.
  std::optional<double> default_partial_rotary_factor = std::nullopt;
  /// Has it layers with an MLP, whose width is intermediate_size? Otherwise that key is not read.
  bool has_mlps = true;
  /// Models of texts and pictures whose language model is of this family.
  std::optional<CompositeKind> composite = std::nullopt;
  /// quant_method of a quantization_config whose weights are read; empty: none is.
  std::optional<std::string_view> reads_quantized = std::nullopt;
};

/// The register (families.cpp).
std::span<const Family* const> all_families();

/// Null where there is none of this model_type.
const Family* family_of_type(std::string_view model_type);

/// Does the family read weights that are stored as this config.json says (quantization_config)?
bool reads_stored(const Family& family, const nlohmann::json& config);

/// "qwen2 (Qwen2, Qwen2.5), qwen3 and ...": what is supported, for messages.
std::string describe_families();

/// "qwen2, qwen3 or ...": their model types, for help.
std::string model_types();

}  // namespace longspan
