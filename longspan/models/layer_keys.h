// Reads keys of config.json that several families share into parts of layers. Each function throws
// UserError for invalid values. No torch.
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

/// Defaults of a family for missing head keys. In the comments below, "none" gives the meaning of a
/// missing key without a default, and "null" the meaning of a key with the value null.
struct HeadDefaults {
  std::optional<int64_t> num_heads = {};     ///< none: required
  std::optional<int64_t> head_dim = {};      ///< none, null: hidden_size / num_attention_heads
  std::optional<int64_t> num_kv_heads = {};  ///< none, null: num_attention_heads
};

/// Reads num_attention_heads and num_key_value_heads, which must divide num_attention_heads. Does
/// not set head dims.
AttentionSpec read_head_counts(const JsonObject& keys, const HeadDefaults& defaults = {});

/// Reads softmax attention from the keys of read_head_counts() and head_dim; the scale is 1 /
/// sqrt(head_dim). The result has no rotation, norms, biases, window or sinks, which the family's
/// own code adds.
SelfAttentionSpec read_attention(const JsonObject& keys, const ModelSpec& model,
                                 const HeadDefaults& defaults = {});

/// Reads intermediate_size: SwiGLU without biases.
GatedMlpSpec read_gated_mlp(const JsonObject& keys);

/// Reads sliding_window; null means no window. Returns `fallback` if the key is missing.
std::optional<int64_t> read_window(const JsonObject& keys, std::optional<int64_t> fallback);

}  // namespace longspan
