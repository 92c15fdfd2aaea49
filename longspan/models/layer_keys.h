// Keys of config.json that families have in common, as parts of layers. Each throws UserError for
// what no model can have. No torch.
#pragma once

#include <cstdint>
#include <optional>

#include "longspan/input/json_object.h"
#include "longspan/input/numbers.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// A whole number from 1 to `most`; the second, where the file has none, `fallback`.
int64_t positive(const JsonObject& keys, const char* name, int64_t most = kMostIndexed);
int64_t positive(const JsonObject& keys, const char* name, int64_t most, int64_t fallback);

/// What a family has where its config.json says nothing of its heads. A key that is null says the
/// other thing.
struct HeadDefaults {
  std::optional<int64_t> num_heads = {};     ///< none: the file must say
  std::optional<int64_t> head_dim = {};      ///< none, null: hidden_size / num_attention_heads
  std::optional<int64_t> num_kv_heads = {};  ///< none, null: num_attention_heads
};

/// num_attention_heads and num_key_value_heads, which divides it; nothing of their sizes.
AttentionSpec read_head_counts(const JsonObject& keys, const HeadDefaults& defaults = {});

/// Softmax attention of these and head_dim, scaled by 1 / sqrt(head_dim), that is neither rotated
/// nor has what a family adds: norms, biases, a window, sinks.
SelfAttentionSpec read_attention(const JsonObject& keys, const ModelSpec& model,
                                 const HeadDefaults& defaults = {});

/// intermediate_size: SwiGLU, without biases.
GatedMlpSpec read_gated_mlp(const JsonObject& keys);

/// sliding_window, which null says is none; `fallback` where the file has none.
std::optional<int64_t> read_window(const JsonObject& keys, std::optional<int64_t> fallback);

}  // namespace longspan
