// What config.json of a Hugging Face folder says of a model. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/spec/model_spec.h"

namespace longspan {

/// How files store the matrices of a model, by quantization_config of config.json. They are read as
/// plain numbers, and saved as such without that key.
struct StoredNumbers {
  enum class Format {
    kPlain,
    kMxfp4,  ///< some matrices in checkpoint/mxfp4.h
    kFp8,    ///< some matrices in checkpoint/fp8_blocks.h
  };
  Format format = Format::kPlain;
  /// Of kFp8: rows and columns that share a scale.
  int64_t block_rows = 128, block_columns = 128;

  bool operator==(const StoredNumbers&) const = default;
};

struct ModelConfig {
  std::string model_type;    // of a family of the register (models/family.h)
  std::string architecture;  // e.g. Qwen2ForCausalLM
  /// What the model is made of.
  ModelSpec spec;
  int64_t max_position_embeddings = 0;
  /// The rotation that longer rows stretch (models/rope_scaling.h): that of the layers without a
  /// window, where others have their own.
  RotarySpec rotary;
  /// rope_parameters has an object for each kind of layer, and `rotary` is full_attention's.
  bool has_rotary_by_kind = false;
  /// router_aux_loss_coef, where output_router_logits asks for the auxiliary loss.
  std::optional<double> router_aux_loss_coef;
  StoredNumbers stored;
  /// The file's own text, so that saving writes back every key, known here or not.
  std::string json;
};

/// Reads folder/config.json (or the file itself). Throws UserError: missing, broken JSON (line),
/// unsupported model_type, activation or rope type (names what is supported).
ModelConfig load_model_config(const std::string& folder_or_file);

}  // namespace longspan
