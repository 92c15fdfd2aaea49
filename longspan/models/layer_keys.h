// Keys of config.json that families share, as parts of layers. Each function throws UserError for
// values that no model can have. No torch.
#pragma once

#include <cstdint>
#include <optional>

#include "longspan/input/json_object.h"
#include "longspan/input/numbers.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Reads an integer from 1 to `most`. With `fallback`, the key may be missing.
int64_t positive(const JsonObject& keys, const char* name, int64_t most = kMostIndexed);
int64_t positive(const JsonObject& keys, const char* name, int64_t most, int64_t fallback);

/// Defaults of a family for missing head keys. A key that is null has the meaning after "null".
struct HeadDefaults {
  std::optional<int64_t> num_heads = {};     ///< none: required
  std::optional<int64_t> head_dim = {};      ///< none, null: hidden_size / num_attention_heads
  std::optional<int64_t> num_kv_heads = {};  ///< none, null: num_attention_heads
};

/// Reads num_attention_heads and num_key_value_heads, which must divide it. Does not set head
/// sizes.
AttentionSpec read_head_counts(const JsonObject& keys, const HeadDefaults& defaults = {});

/// Reads softmax attention from these keys and head_dim, scaled by 1 / sqrt(head_dim). No rotation,
/// norms, biases, window or sinks: the family adds them.
SelfAttentionSpec read_attention(const JsonObject& keys, const ModelSpec& model,
                                 const HeadDefaults& defaults = {});

/// Reads intermediate_size: SwiGLU without biases.
GatedMlpSpec read_gated_mlp(const JsonObject& keys);

/// Reads sliding_window; null means no window. Returns `fallback` if the key is missing.
std::optional<int64_t> read_window(const JsonObject& keys, std::optional<int64_t> fallback);

}  // namespace longspan
