// What sets one model family apart from another. Everything else is shared code. No torch.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

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
};

/// The register (families.cpp).
std::span<const Family* const> all_families();

/// "qwen2 (Qwen2, Qwen2.5), qwen3 and ...": what is supported, for messages.
std::string describe_families();

/// "qwen2, qwen3 or ...": their model types, for help.
std::string model_types();

}  // namespace longspan
