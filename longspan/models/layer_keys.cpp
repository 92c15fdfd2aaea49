#include "longspan/models/layer_keys.h"

#include <fmt/format.h>

#include <cmath>

namespace longspan {
namespace {

int64_t in_range(const JsonObject& keys, const char* name, int64_t value, int64_t most) {
  if (value <= 0) keys.fail(fmt::format("{} is {}, it must be positive", name, value));
  if (value > most) keys.fail(fmt::format("{} is {}, it must be at most {}", name, value, most));
  return value;
}

/// Returns 0 if the file has no head_dim and the heads do not divide the hidden size.
int64_t head_dim_of(const JsonObject& keys, const ModelSpec& model, int64_t num_heads,
                    const std::optional<int64_t>& fallback) {
  if (keys.has("head_dim")) return positive(keys, "head_dim");
  if (fallback && !keys.contains("head_dim")) return *fallback;
  return model.hidden_size % num_heads == 0 ? model.hidden_size / num_heads : 0;
}

}  // namespace

int64_t positive(const JsonObject& keys, const char* name, int64_t most) {
  return in_range(keys, name, keys.get<int64_t>(name), most);
}

int64_t positive(const JsonObject& keys, const char* name, int64_t most, int64_t fallback) {
  return in_range(keys, name, keys.get<int64_t>(name, fallback), most);
}

AttentionSpec read_head_counts(const JsonObject& keys, const HeadDefaults& defaults) {
  AttentionSpec attention;
  constexpr const char* kHeads = "num_attention_heads";
  attention.num_heads = defaults.num_heads
                            ? positive(keys, kHeads, kMostIndexed, *defaults.num_heads)
                            : positive(keys, kHeads);
  attention.num_kv_heads = attention.num_heads;
  const bool is_given = keys.contains("num_key_value_heads");
  if (keys.has("num_key_value_heads")) {
    attention.num_kv_heads = positive(keys, "num_key_value_heads");
  } else if (defaults.num_kv_heads && !is_given) {
    attention.num_kv_heads = *defaults.num_kv_heads;
  }
  if (attention.num_heads % attention.num_kv_heads != 0) {
    keys.fail(fmt::format(
        "num_attention_heads {} is not a multiple of num_key_value_heads {}{}", attention.num_heads,
        attention.num_kv_heads,
        is_given ? "" : ", which models of this type have: num_key_value_heads is missing"));
  }
  return attention;
}

SelfAttentionSpec read_attention(const JsonObject& keys, const ModelSpec& model,
                                 const HeadDefaults& defaults) {
  SelfAttentionSpec mixer;
  mixer.attention = read_head_counts(keys, defaults);
  const int64_t head_dim = head_dim_of(keys, model, mixer.attention.num_heads, defaults.head_dim);
  if (head_dim == 0) {
    keys.fail(fmt::format("hidden_size {} is not a multiple of num_attention_heads {}",
                          model.hidden_size, mixer.attention.num_heads));
  }
  if (head_dim % 2 != 0) {
    keys.fail(fmt::format("head_dim {} is odd, rotary embeddings need pairs", head_dim));
  }
  mixer.attention.key_dim = mixer.attention.value_dim = head_dim;
  mixer.attention.scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return mixer;
}

GatedMlpSpec read_gated_mlp(const JsonObject& keys) {
  return {.intermediate_size = positive(keys, "intermediate_size")};
}

std::optional<int64_t> read_window(const JsonObject& keys, std::optional<int64_t> fallback) {
  const std::optional<int64_t> window =
      keys.contains("sliding_window") ? keys.optional<int64_t>("sliding_window") : fallback;
  if (window && *window <= 0) {
    keys.fail(fmt::format("sliding_window is {}, it must be positive, or null for full attention",
                          *window));
  }
  return window;
}

}  // namespace longspan
