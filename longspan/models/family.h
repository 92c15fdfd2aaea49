// What sets one model family apart from another. Everything else is shared code. No torch.
#pragma once

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// A family reads the keys that only it knows, with its own defaults, after the common ones are
/// read.
struct Family {
  const char* model_type;
  const char* architecture;
  bool default_tie_word_embeddings;
  double default_rms_norm_eps;
  int64_t default_max_position_embeddings;
  void (*read_own_keys)(const JsonObject& keys, ModelConfig& config);
};

extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kLlama;

}  // namespace longspan
