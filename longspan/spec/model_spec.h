// A model as data (ModelSpec). Families read config.json into a ModelSpec, and all other code
// queries the ModelSpec. No torch.
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
/// The kinds of feed-forwards, which process each token separately.
using FeedForwardSpec = std::variant<GatedMlpSpec, MixtureOfExpertsSpec>;

/// The names of a layer's RMSNorms in the files.
struct LayerNorms {
  std::string_view before_mixer = "input_layernorm";
  std::string_view before_feed_forward = "post_attention_layernorm";
  /// Two additional norms: of the mixer's output and of the feed-forward's output, before the
  /// output is added to h.
  struct Behind {
    std::string_view mixer, feed_forward;

    bool operator==(const Behind&) const = default;
  };
  std::optional<Behind> behind = {};

  bool operator==(const LayerNorms&) const = default;
};

/// h += mixer(norm(h)), then h += feed_forward(norm(h)). With norms.behind, each output passes an
/// additional norm before the addition.
struct LayerSpec {
  TokenMixerSpec mixer;
  FeedForwardSpec feed_forward;
  LayerNorms norms = {};

  bool operator==(const LayerSpec&) const = default;
};

/// Costs of a layer's parts, computed from the layer's spec.
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
  /// The token whose embedding gets no gradient from inputs (padding_idx of torch.nn.Embedding).
  /// With a tied head, the token's row of the matrix still gets the head's gradient.
  std::optional<int64_t> padding_token;
  int64_t num_layers = 0;
  /// Number of layers for multi-token prediction (arXiv 2404.19737) that files may have after the
  /// num_layers layers. These layers are not read.
  int64_t extra_layers = 0;
  /// Layer i is pattern[i % pattern.size()]; one entry if all layers are of one kind. The pattern
  /// is not a list of all layers, because num_layers may be wrong until the weights are read.
  std::vector<LayerSpec> pattern;
  double norm_eps = 1e-6;
  /// Kind of the layers' norms, of the norms of heads, and of the last norm.
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

/// Returns the number of layers of each entry of the pattern, in the pattern's order.
std::vector<int64_t> layers_of_pattern(const ModelSpec& model);

/// True if the layer's feed-forward saves more than its input for its backward, so that
/// checkpointing has something to recompute.
bool feed_forward_saves(const ModelSpec& model, const LayerSpec& layer);
/// Return the number of layers with feed_forward_saves(), and the indices of the last `count` of
/// these layers in descending order.
int64_t num_saving_layers(const ModelSpec& model);
std::vector<int64_t> last_saving_layers(const ModelSpec& model, int64_t count);

/// Returns the softmax attention in a mixer, for modification; null if the mixer has no softmax
/// attention.
AttentionSpec* attention_in(TokenMixerSpec& mixer);

/// Returns the different softmax attentions of the layers, in the order of the layers, each with
/// the number of its layers.
std::vector<std::pair<AttentionSpec, int64_t>> attentions_of(const ModelSpec& model);

/// Returns the different rotations of the layers.
std::vector<RotaryKind> rotary_kinds_of(const ModelSpec& model);

/// Returns the recurrence of the model's recurrent layers, which all have the same recurrence;
/// nullopt if the model has no recurrent layer.
std::optional<RecurrenceSpec> recurrence_of(const ModelSpec& model);
inline bool goes_over_rows(const ModelSpec& model) { return recurrence_of(model).has_value(); }

/// Returns the parameters of one layer, in Hugging Face's order.
std::vector<ParameterSpec> layer_parameters(const ModelSpec& model, int64_t layer);

/// Returns the parameters of one layer of each kind.
std::vector<ParameterSpec> parameters_of_kinds(const ModelSpec& model);

/// Returns all parameters of the model, in Hugging Face's order. The list has the head only if the
/// head is not tied.
std::vector<ParameterSpec> parameters_of(const ModelSpec& model);

/// Returns the number of parameter elements, without listing the parameters and without buffers.
/// Throws UserError, which names `what`, if the number exceeds 2^53.
int64_t num_parameters_of(const ModelSpec& model, const std::string& what);

/// Returns the number of parameter elements that one token does not use (experts that the router
/// has not chosen).
int64_t idle_parameters_of(const ModelSpec& model);

/// Returns the layer's mixture of experts; null if the layer has another feed-forward.
const MixtureOfExpertsSpec* experts_of(const LayerSpec& layer);
/// Returns the mixture of experts of the first layer with a mixture; null if no layer has a
/// mixture.
const MixtureOfExpertsSpec* experts_of(const ModelSpec& model);
/// Returns the indices of the layers with a mixture.
std::vector<int64_t> layers_with_experts(const ModelSpec& model);

/// Returns the names (ParameterSpec::lora_target), without duplicates, of the linear layers of
/// `parts` that can have an adapter.
std::vector<std::string> lora_targets(const ModelSpec& model,
                                      const std::set<ModelPart>& parts = {ModelPart::kLanguage});

}  // namespace longspan
