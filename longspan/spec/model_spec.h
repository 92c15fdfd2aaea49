// What a model is made of, as data: families read config.json into it, and everything else asks it.
// No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "longspan/spec/gated_delta_net_spec.h"
#include "longspan/spec/gated_mlp_spec.h"
#include "longspan/spec/latent_attention_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/mixture_of_experts_spec.h"
#include "longspan/spec/norm_kind.h"
#include "longspan/spec/parameter_spec.h"
#include "longspan/spec/self_attention_spec.h"

namespace longspan {

/// What mixes the tokens of a row: the kinds that there are.
using TokenMixerSpec = std::variant<SelfAttentionSpec, GatedDeltaNetSpec, LatentAttentionSpec>;
/// What each token goes through by itself: the kinds that there are.
using FeedForwardSpec = std::variant<GatedMlpSpec, MixtureOfExpertsSpec>;

/// The RMSNorms of a layer, as the files name them.
struct LayerNorms {
  std::string_view before_mixer = "input_layernorm";
  std::string_view before_feed_forward = "post_attention_layernorm";
  /// One over what the mixer gives, and one over what the feed-forward gives, before either is
  /// added to h.
  struct Behind {
    std::string_view mixer, feed_forward;

    bool operator==(const Behind&) const = default;
  };
  std::optional<Behind> behind = {};

  bool operator==(const LayerNorms&) const = default;
};

/// h += mixer(norm(h)), then h += feed_forward(norm(h)), each through one more norm where there are
/// some behind.
struct LayerSpec {
  TokenMixerSpec mixer;
  FeedForwardSpec feed_forward;
  LayerNorms norms = {};

  bool operator==(const LayerSpec&) const = default;
};

/// What a layer's parts cost, by its spec.
struct LayerCost {
  TokenMixerCost mixer;
  FeedForwardCost feed_forward;
};
LayerCost cost_of(const LayerSpec& layer, int64_t hidden_size);

/// The name of the head's matrix, where it is not the embedding.
inline constexpr const char* kHeadName = "lm_head.weight";

/// Embedding, layers, an RMSNorm, head.
struct ModelSpec {
  int64_t vocab_size = 0, hidden_size = 0;
  /// The token whose embedding gets no gradient as input (padding_idx of torch.nn.Embedding).
  /// Where the head is tied to the embedding, this row still gets the head's gradient.
  std::optional<int64_t> padding_token;
  int64_t num_layers = 0;
  /// Layers that files may hold behind these and nothing reads: those that predict further tokens
  /// (multi-token prediction, arXiv 2404.19737).
  int64_t extra_layers = 0;
  /// Layer i is pattern[i % pattern.size()]: one for layers that are all alike. Not a list of all,
  /// since num_layers may be a lie until the weights are looked at.
  std::vector<LayerSpec> pattern;
  double norm_eps = 1e-6;
  /// Of the layers' norms, the norms of heads and the last norm.
  NormKind norm_kind = NormKind::kWeight;
  double embedding_scale = 1.0;  ///< what the embedding is multiplied by on its way in
  bool tied_head = false;        ///< the embedding is also the head
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

/// How many layers are of each kind, in the order of the pattern.
std::vector<int64_t> layers_of_pattern(const ModelSpec& model);

/// Does the layer's feed-forward save more than its input for its backward, so that checkpointing
/// has something to compute again?
bool feed_forward_saves(const ModelSpec& model, const LayerSpec& layer);
/// How many layers have such a one, and the last `count` of these, the last one first.
int64_t num_saving_layers(const ModelSpec& model);
std::vector<int64_t> last_saving_layers(const ModelSpec& model, int64_t count);

/// The softmax attention in a mixer, to be changed. Null in one that has none.
AttentionSpec* attention_in(TokenMixerSpec& mixer);

/// The softmax attentions of the layers: each once, in the order of the layers, with the number of
/// layers that compute it.
std::vector<std::pair<AttentionSpec, int64_t>> attentions_of(const ModelSpec& model);

/// The rotations in the layers, each once.
std::vector<RotaryKind> rotary_kinds_of(const ModelSpec& model);

/// The recurrence of its layers that go over the tokens of a row one behind the other, which are
/// alike; none where it has no such layers.
std::optional<RecurrenceSpec> recurrence_of(const ModelSpec& model);
inline bool goes_over_rows(const ModelSpec& model) { return recurrence_of(model).has_value(); }

/// The parameters of one layer, in Hugging Face's order.
std::vector<ParameterSpec> layer_parameters(const ModelSpec& model, int64_t layer);

/// The parameters of one layer of each kind.
std::vector<ParameterSpec> parameters_of_kinds(const ModelSpec& model);

/// All parameters of the model, in Hugging Face's order; a head only where it is not the embedding.
std::vector<ParameterSpec> parameters_of(const ModelSpec& model);

/// Numbers of all parameters, without a list of them, and without buffers. Throws UserError, which
/// says `what` they are of, when these are more than can be counted (2^53).
int64_t num_parameters_of(const ModelSpec& model, const std::string& what);

/// Numbers of parameters that one token does not go through: those of experts not chosen.
int64_t idle_parameters_of(const ModelSpec& model);

/// The mixture of experts in the layer; null: it has another feed-forward.
const MixtureOfExpertsSpec* experts_of(const LayerSpec& layer);
/// That of the first layer that has one; null: no layer has.
const MixtureOfExpertsSpec* experts_of(const ModelSpec& model);
/// The numbers of the layers that have one.
std::vector<int64_t> layers_with_experts(const ModelSpec& model);

/// The linear layers that can have an adapter, by the names that a user calls them, each once.
std::vector<std::string> lora_targets(const ModelSpec& model);

}  // namespace longspan
