// Description of a model family. All families share all other code. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"
#include "longspan/spec/file_tensors.h"
#include "longspan/spec/vision_spec.h"

namespace longspan {

/// Tokens of config.json that stand for pictures. video: -1 in models that take no videos.
struct PictureTokens {
  int64_t image, video, start, end;
};
/// The keys of these tokens in config.json; null: the family has no such token.
struct PictureTokenKeys {
  const char* image = "image_token_id";
  const char* video = "video_token_id";
  const char* start = "vision_start_token_id";
  const char* end = "vision_end_token_id";
};

/// The sources of a tower's spec: vision_config, all of config.json, and the language model's
/// hidden size.
struct VisionKeys {
  const JsonObject& tower;
  const JsonObject& whole;
  int64_t hidden_size;
};

/// The place of the key tie_word_embeddings of a composite model in config.json, as transformers
/// reads the key.
enum class HeadTie {
  kOneOfBoth,   ///< beside or in text_config, by the version; both must agree
  kBeside,      ///< beside text_config; the key in text_config is ignored
  kBesideOrIn,  ///< tied if either place says so
};

/// A model of text and images. config.json has the language model's keys in text_config. The files
/// give the language model's tensors other names (models/composite.h).
struct CompositeKind {
  const char* model_type;
  const char* architecture;
  const CompositeNames& names;
  /// Reads the vision tower; null: the tower is not supported, so rows have no pictures.
  VisionSpec (*read_vision)(const VisionKeys& keys) = nullptr;
  PictureTokens default_tokens = {};
  /// The language model's keys may be in config.json itself, next to vision_config.
  bool may_be_flat = false;
  HeadTie head_tie = HeadTie::kOneOfBoth;
  PictureTokenKeys token_keys = {};
};

/// A family of models. Each family is one constant in its own file.
struct Family {
  const char* model_type;
  const char* models;  // published names of the models; empty: same as model_type
  const char* architecture;
  bool default_tie_word_embeddings;
  double default_rms_norm_eps;
  int64_t default_max_position_embeddings;
  /// Reads the layer keys into config.spec.pattern, with the family's own defaults. Before the
  /// call, the caller has read the vocabulary size, hidden size, number of layers, eps of norms,
  /// padding token and max_position_embeddings. Helpers: models/layer_keys.h, models/rotary_keys.h,
  /// models/expert_keys.h.
  void (&read_layers)(const JsonObject& keys, ModelConfig& config);
  /// Default of vocab_size; nullopt: the key is required.
  std::optional<int64_t> default_vocab_size = std::nullopt;
  /// Default of pad_token_id; nullopt: no padding token.
  std::optional<int64_t> default_padding_token = std::nullopt;
  /// The models of text and images with a language model of this family.
  std::optional<CompositeKind> composite = std::nullopt;
  /// True if the language model is also published alone. Otherwise transformers has no class for
  /// the language model alone, and files of `model_type` itself are refused.
  bool may_be_alone = true;
  /// The quantized format that the family reads (quant_method of quantization_config), besides
  /// unquantized weights.
  StoredNumbers::Format reads_quantized = StoredNumbers::Format::kPlain;
};

/// Returns the register of all families (families.cpp).
std::span<const Family* const> all_families();

/// Returns null if no family reads files of this model_type.
const Family* family_of_type(std::string_view model_type);

/// Returns the model_type for messages: the model_type in the family's files.
const char* shown_type(const Family& family);

/// Returns the storage format of the weights by quantization_config of config.json; nullopt if the
/// family does not read the quantization. Throws UserError for fp8 formats other than e4m3 and for
/// invalid block sizes. `path`: for messages.
std::optional<StoredNumbers> read_stored(const Family& family, const nlohmann::json& config,
                                         const std::string& path);

/// Returns the supported families, e.g. "qwen2 (Qwen2, Qwen2.5), qwen3 and ...", for messages.
std::string describe_families();

/// Returns the models of text and images whose language model can be trained, e.g. "qwen3_5, gemma3
/// and ...".
std::string describe_composites();

/// Returns the models whose rows may have pictures, e.g. "qwen2_vl and qwen3_vl".
std::string describe_models_of_pictures();

/// Returns the model types of language models alone for help, e.g. "qwen2, qwen3 or ...".
std::string model_types();

}  // namespace longspan
