// A model as data: families read config.json into it, and all other code queries it. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
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
#include "longspan/spec/vision_spec.h"

namespace longspan {

/// The kinds of token mixers.
using TokenMixerSpec = std::variant<SelfAttentionSpec, GatedDeltaNetSpec, LatentAttentionSpec>;
/// The kinds of feed-forwards, which process each token by itself.
using FeedForwardSpec = std::variant<GatedMlpSpec, MixtureOfExpertsSpec>;

/// The RMSNorms of a layer, by their names in the files.
struct LayerNorms {
  std::string_view before_mixer = "input_layernorm";
  std::string_view before_feed_forward = "post_attention_layernorm";
  /// A norm of the mixer's output and one of the feed-forward's output, before they are added to h.
  struct Behind {
    std::string_view mixer, feed_forward;

    bool operator==(const Behind&) const = default;
  };
  std::optional<Behind> behind = {};

  bool operator==(const LayerNorms&) const = default;
};

/// h += mixer(norm(h)), then h += feed_forward(norm(h)). With norms.behind, each output passes one
/// more norm.
struct LayerSpec {
  TokenMixerSpec mixer;
  FeedForwardSpec feed_forward;
  LayerNorms norms = {};

  bool operator==(const LayerSpec&) const = default;
};

/// Costs of a layer's parts, by its spec.
struct LayerCost {
  TokenMixerCost mixer;
  FeedForwardCost feed_forward;
};
LayerCost cost_of(const LayerSpec& layer, int64_t hidden_size);

/// Name of the head's matrix if the head is not tied.
inline constexpr const char* kHeadName = "lm_head.weight";

/// Embedding, layers, a last RMSNorm, head.
struct ModelSpec {
  int64_t vocab_size = 0, hidden_size = 0;
  /// The token whose embedding gets no gradient as an input (padding_idx of torch.nn.Embedding).
  /// With a tied head, this row still gets the head's gradient.
  std::optional<int64_t> padding_token;
  int64_t num_layers = 0;
  /// Layers for multi-token prediction (arXiv 2404.19737) that files may hold after these. They are
  /// not read.
  int64_t extra_layers = 0;
  /// Layer i is pattern[i % pattern.size()]; one entry if all layers are alike. Not a list of all
  /// layers, since num_layers may be wrong until the weights are read.
  std::vector<LayerSpec> pattern;
  double norm_eps = 1e-6;
  /// Kind of the layers' norms, the norms of heads and the last norm.
  NormKind norm_kind = NormKind::kWeight;
  double embedding_scale = 1.0;  ///< factor of the embedding's output
  bool tied_head = false;        ///< the embedding is also the head
  double initializer_range = 0.02;
  /// The tower of a model of texts and pictures; none: rows have no pictures.
  std::optional<VisionSpec> vision = {};

  const LayerSpec& layer(int64_t i) const { return pattern[i % pattern.size()]; }
  /// Returns the unit of the head's parameters (parameter_spec.h).
  int head_unit() const { return tied_head ? kEmbeddingUnit : static_cast<int>(num_layers + 1); }
  /// Returns the first unit of the tower's parameters.
  int vision_unit() const { return static_cast<int>(num_layers + 2); }
  /// True for the role of the matrix that computes logits.
  bool is_head(ParameterRole role) const {
    return role == (tied_head ? ParameterRole::kEmbedding : ParameterRole::kHead);
  }

  bool operator==(const ModelSpec&) const = default;
};

/// Returns the number of layers of each entry of the pattern, in its order.
std::vector<int64_t> layers_of_pattern(const ModelSpec& model);

/// True if the layer's feed-forward saves more than its input for its backward, so that
/// checkpointing has something to recompute.
bool feed_forward_saves(const ModelSpec& model, const LayerSpec& layer);
/// The number of such layers, and the last `count` of them in descending order.
int64_t num_saving_layers(const ModelSpec& model);
std::vector<int64_t> last_saving_layers(const ModelSpec& model, int64_t count);

/// Returns the softmax attention in a mixer, to be modified; null if it has none.
AttentionSpec* attention_in(TokenMixerSpec& mixer);

/// Returns the softmax attentions of the layers, each once, in the order of the layers, with the
/// number of layers that compute it.
std::vector<std::pair<AttentionSpec, int64_t>> attentions_of(const ModelSpec& model);

/// Returns the rotations in the layers, each once.
std::vector<RotaryKind> rotary_kinds_of(const ModelSpec& model);

/// Returns the recurrence of the model's recurrent layers, which are alike; nullopt if there are
/// none.
std::optional<RecurrenceSpec> recurrence_of(const ModelSpec& model);
inline bool goes_over_rows(const ModelSpec& model) { return recurrence_of(model).has_value(); }

/// Returns the parameters of one layer, in Hugging Face's order.
std::vector<ParameterSpec> layer_parameters(const ModelSpec& model, int64_t layer);

/// Returns the parameters of one layer of each kind.
std::vector<ParameterSpec> parameters_of_kinds(const ModelSpec& model);

/// Returns all parameters of the model, in Hugging Face's order; the head only if it is untied.
std::vector<ParameterSpec> parameters_of(const ModelSpec& model);

/// Returns the number of parameter elements, without listing the parameters and without buffers.
/// Throws UserError, which names `what`, if it exceeds 2^53.
int64_t num_parameters_of(const ModelSpec& model, const std::string& what);

/// Returns the parameter elements that one token does not use: those of experts not chosen.
int64_t idle_parameters_of(const ModelSpec& model);

/// Returns the layer's mixture of experts; null if it has another feed-forward.
const MixtureOfExpertsSpec* experts_of(const LayerSpec& layer);
/// Returns the mixture of the first layer that has one; null if none has.
const MixtureOfExpertsSpec* experts_of(const ModelSpec& model);
/// Returns the indices of the layers with a mixture.
std::vector<int64_t> layers_with_experts(const ModelSpec& model);

/// Returns the linear layers in these parts that can have an adapter, by the names for users, each
/// once.
std::vector<std::string> lora_targets(const ModelSpec& model,
                                      const std::set<ModelPart>& parts = {ModelPart::kLanguage});

}  // namespace longspan
