// What a model is made of, as data: families read config.json into it, and everything else asks it.
// No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/spec/attention_spec.h"
#include "longspan/spec/parameter_spec.h"
#include "longspan/spec/rotary_spec.h"

namespace longspan {

/// What mixes the tokens of a row: softmax attention, with what a layer does around it.
struct SelfAttentionSpec {
  AttentionSpec attention;
  std::optional<RotarySpec> rotary;  ///< how queries and keys are rotated; none: not at all
  bool qk_norm = false;              ///< an RMSNorm over each head of queries and of keys
  bool qkv_bias = false, output_bias = false;

  bool operator==(const SelfAttentionSpec&) const = default;
};

/// down(silu(gate x) * up x), of each token by itself.
struct MlpSpec {
  int64_t intermediate_size = 0;
  bool bias = false;  ///< of all three

  bool operator==(const MlpSpec&) const = default;
};

/// h += mixer(norm(h)), then h += feed_forward(norm(h)); the norms are RMSNorms.
struct LayerSpec {
  SelfAttentionSpec mixer;
  MlpSpec feed_forward;

  bool operator==(const LayerSpec&) const = default;
};

/// Embedding, layers, an RMSNorm, head.
struct ModelSpec {
  int64_t vocab_size = 0, hidden_size = 0;
  /// The token whose input embedding gets no gradient (padding_idx of torch.nn.Embedding). The
  /// gradient of a head that is tied to the embedding it gets.
  std::optional<int64_t> padding_token;
  int64_t num_layers = 0;
  /// Layer i is pattern[i % pattern.size()]: one for layers that are all alike. Not a list of all,
  /// since num_layers may be a lie until the weights are looked at.
  std::vector<LayerSpec> pattern;
  double norm_eps = 1e-6;
  bool tied_head = false;  ///< the embedding is also the head
  double initializer_range = 0.02;

  const LayerSpec& layer(int64_t i) const { return pattern[i % pattern.size()]; }
  /// The unit of the head's parameters (parameter_spec.h).
  int head_unit() const { return tied_head ? kEmbeddingUnit : static_cast<int>(num_layers + 1); }
  /// Is this the matrix that makes logits of hidden states?
  bool is_head(ParameterRole role) const {
    return role == (tied_head ? ParameterRole::kEmbedding : ParameterRole::kHead);
  }

  bool operator==(const ModelSpec&) const = default;
};

/// The parameters of one layer, in Hugging Face's order.
std::vector<ParameterSpec> layer_parameters(const ModelSpec& model, int64_t layer);

/// All parameters of the model, in Hugging Face's order; a head only where it is not the embedding.
std::vector<ParameterSpec> parameters_of(const ModelSpec& model);

/// Numbers of all parameters, without a list of them. Throws UserError, which says `what` they are
/// of, when these are more than can be counted (2^53).
int64_t num_parameters_of(const ModelSpec& model, const std::string& what);

/// The linear layers that can have an adapter, by the names that a user calls them, each once.
std::vector<std::string> lora_targets(const ModelSpec& model);

/// Does a file of the model's weights hold this tensor to no use? Older ones carry the rotary
/// frequencies, and some the head though it is the embedding.
bool is_redundant_tensor(const ModelSpec& model, const std::string& stored_name);

/// The number of the layer that a tensor of the model's files belongs to; none: it is outside.
std::optional<std::string> layer_of_tensor(const std::string& stored_name);

}  // namespace longspan
