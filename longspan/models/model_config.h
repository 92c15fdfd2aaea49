// Contents of config.json of a Hugging Face folder. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/spec/model_spec.h"
#include "longspan/spec/packed_format.h"

namespace longspan {

struct GroupedFormat;

/// Storage format of a model's matrices, by quantization_config of config.json. Reading dequantizes
/// quantized matrices, except those that a run holds in 4 bits. Saving writes unquantized weights
/// and removes quantization_config.
struct StoredNumbers {
  enum class Format {
    kPlain,
    kMxfp4,    ///< some matrices are in MXFP4, checkpoint/mxfp4.h
    kFp8,      ///< some matrices are in fp8, checkpoint/fp8_blocks.h
    kGrouped,  ///< some matrices are in 4 bits, in `grouped`
  };
  Format format = Format::kPlain;
  /// For kFp8: rows and columns that share a scale.
  int64_t block_rows = 128, block_columns = 128;
  /// For kGrouped: the format, the quantized matrices, and the number that files' zeros lack.
  const GroupedFormat* grouped = nullptr;
  FolderBits packed = {};
  int zero_offset = 0;

  /// Returns the matrices that the folder holds in 4 bits; null: none.
  const FolderBits* four_bits() const { return format == Format::kGrouped ? &packed : nullptr; }
  bool operator==(const StoredNumbers&) const = default;
};

struct ModelConfig {
  std::string model_type;    // a family of the register (models/family.h)
  std::string architecture;  // e.g. Qwen2ForCausalLM
  /// Layers and parameters of the model.
  ModelSpec spec;
  int64_t max_position_embeddings = 0;
  /// The rotation that rope_scaling stretches (models/rope_scaling.h). If layers with a window have
  /// their own rotation, `rotary` is the rotation of the other layers.
  RotarySpec rotary;
  /// True if rope_parameters has an object for each kind of layer. `rotary` is then the rotation of
  /// the full_attention layers.
  bool has_rotary_by_kind = false;
  /// router_aux_loss_coef if output_router_logits turns the auxiliary loss on.
  std::optional<double> router_aux_loss_coef;
  StoredNumbers stored;
  /// The file's text. Saving writes back every key of the file, including unknown keys.
  std::string json;
};

/// Reads folder/config.json (or the file itself). Throws UserError for a missing file, broken JSON
/// (with the line), or an unsupported model_type, activation or rope type (with the supported
/// ones).
ModelConfig load_model_config(const std::string& folder_or_file);

}  // namespace longspan
