// A model's parameter as data. The optimizer, sharding, freezing, adapters, estimates, random
// models and saving query it, and never test part of a name. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "longspan/spec/norm_kind.h"

namespace longspan {

enum class ParameterRole {
  kEmbedding,      ///< [vocabulary, hidden], looked up by token; also the head if tied
  kNorm,           ///< the weight of a norm
  kProjection,     ///< [out, in], the matrix of a linear layer within a layer of the model
  kBias,           ///< the bias of a linear layer or another operation
  kSinks,          ///< [heads], the logits of attention sinks (AttentionSpec::has_sinks)
  kConvolution,    ///< [channels, 1, tokens], a depthwise convolution
  kPatches,        ///< [hidden, channels, time, height, width], from pixels to hidden states
  kPositions,      ///< [positions, hidden], added to hidden states
  kFeatures,       ///< [in, out], from patches' hidden states to those of the language model
  kLogDecay,       ///< logarithms of the decay rates of a recurrence's states
  kRouter,         ///< [experts, hidden], scores each expert
  kBuffer,         ///< read by the model, never trained, saved unchanged
  kHead,           ///< [vocabulary, hidden], from the last hidden states to logits
  kLoraA,          ///< [r, in], the first matrix of an adapter
  kLoraB,          ///< [out, r], the second
  kValueHead,      ///< [1, hidden]
  kValueHeadBias,  ///< [1]
};

/// The dtype in which values are used.
enum class ParameterUse {
  kCast,    ///< cast to the compute dtype at every use, so it may be held in that dtype
  kAsHeld,  ///< used in the dtype in which it is held
};

/// The part of a model of texts and pictures to which a parameter belongs. Users train parts by
/// themselves.
enum class ModelPart {
  kLanguage,
  kTower,      ///< from pixels to hidden states of patches
  kProjector,  ///< from these to hidden states of the language model
};

/// Initial values of a new parameter.
struct Initialisation {
  enum class Kind { kZeros, kOnes, kNormal, kUniform, kLogUniform };
  Kind kind = Kind::kZeros;
  /// kNormal: the standard deviation; kUniform: within [-scale, scale); kLogUniform: logarithms of
  /// numbers within [0.01, scale).
  double scale = 0.0;

  bool operator==(const Initialisation&) const = default;
};

/// Units: parameters that are used together and that ZeRO-3 gathers together. The layers are units
/// 1 to num_layers; an untied head is the next unit. The units of a vision tower begin after that
/// (ModelSpec::vision_unit), whether or not the head is tied: a number may have no parameters.
constexpr int kAlwaysThere = -1;   ///< the last norm and a value head, which are never released
constexpr int kEmbeddingUnit = 0;  ///< also the head if tied

/// The part of a stored tensor that is the parameter: its rows from `begin` on, along dim 0. The
/// parts of one tensor are consecutive in the list of parameters and cover all of it.
struct StoredPart {
  int64_t begin, num_rows;  // num_rows: of the whole tensor
  /// The parameter is a single such row: parts are stacked along an extra dim, matrices as [in,
  /// out].
  bool stacked = false;
  /// The rows are those of this many matrices behind each other: the tensor is [num_matrices,
  /// num_rows / num_matrices, columns]. 0: the tensor is one matrix. Files may also hold each
  /// matrix as its transpose.
  int64_t num_matrices = 0;

  bool operator==(const StoredPart&) const = default;
};

/// An alternative storage of a parameter in the files of a mixture of experts: within one tensor
/// for all of a layer's experts, as Qwen3.5's mixtures are published.
struct StackedPlace {
  std::string tensor;
  std::vector<int64_t> shape;  // [experts, rows of each, columns]
  int64_t begin;  // index of the parameter's first element; it is contiguous from there

  bool operator==(const StackedPlace&) const = default;
};

/// One of the experts of a layer: its index, and the number of experts.
struct ExpertNumber {
  int64_t number, count;

  bool operator==(const ExpertNumber&) const = default;
};

/// Returns the place that has the expert when `num_places` places share a layer's experts;
/// num_places must divide the count. Place p has the experts from p * count / num_places on.
inline int place_of(const ExpertNumber& expert, int num_places) {
  return static_cast<int>(expert.number / (expert.count / num_places));
}

struct ParameterSpec {
  std::string name;  ///< identifies it; no part of it carries meaning
  std::vector<int64_t> shape;
  ParameterRole role;
  int unit;
  std::optional<int64_t> layer;  ///< 0-based; none outside the layers
  /// The part of a layer that users name to train it alone (self_attn, mlp, input_layernorm, ...).
  /// Empty outside the layers.
  std::string module;
  /// The linear layer that users name to adapt it (q_proj, down_proj, ...); empty: not adaptable.
  std::string lora_target;
  /// Like lora_target, for a linear layer that gets no adapter even if users name it, since PEFT
  /// adapts other layers of that name (MlpAdapters).
  std::string passed_over_target;
  /// Full name of the linear layer that the adapter is on: its own, or that of a fused tensor in
  /// the files. It is the prefix of the adapter's matrices in PEFT. Empty if lora_target is.
  std::string adapted_linear;
  /// Expands latents to keys and values (AttentionSpec::latent_dim).
  bool expands_latents = false;
  bool decays;  ///< subject to weight decay
  ParameterUse use;
  Initialisation init;
  /// The tensor in Hugging Face's files that holds it, alone or as a part.
  std::string stored_as;
  std::optional<StoredPart> stored_part;
  /// Alternative storage on reading, if the files have no tensor `stored_as`. Saving uses
  /// `stored_as`.
  std::optional<StackedPlace> stored_in_stack;
  /// The expert to which it belongs, also for an adapter's matrices; none: every token uses it.
  std::optional<ExpertNumber> expert;
  ModelPart part = ModelPart::kLanguage;

  int64_t num_elements() const;
  bool operator==(const ParameterSpec&) const = default;
};

/// Returns the spec of a parameter outside the layers, with the defaults of its role: matrices
/// decay, norms and biases do not; norms are initialized to ones, biases and other parameters
/// without `init` to zeros.
ParameterSpec parameter_spec(std::string name, std::vector<int64_t> shape, ParameterRole role,
                             int unit, Initialisation init = {});

/// Returns the initialization of a norm's weight that makes the norm multiply by 1: ones, or zeros
/// if the norm adds 1 to its weight.
Initialisation first_values(NormKind norm);

/// Returns the shape of the tensor in the files that holds the parameter, alone or with others.
std::vector<int64_t> stored_shape(const ParameterSpec& parameter);
/// True if the parameter is stored as a tensor of its own, or as the first part of one.
bool begins_stored(const ParameterSpec& parameter);

/// Names in value_head.safetensors, as in TRL's AutoModelForCausalLMWithValueHead and
/// LLaMA-Factory: [1, hidden] and [1].
inline constexpr const char* kValueHeadWeight = "v_head.summary.weight";
inline constexpr const char* kValueHeadBias = "v_head.summary.bias";

/// Names in PEFT of the matrices of an adapter on a projection.
std::string lora_a_name(const ParameterSpec& projection);
std::string lora_b_name(const ParameterSpec& projection);
/// The same for a linear layer of this full name.
std::string lora_a_name(const std::string& linear);
std::string lora_b_name(const std::string& linear);

/// True if projections that are rows of one tensor in the files (StoredPart) share one adapter.
/// PEFT sees one linear layer: all share its A, and each has its own rows of B.
bool shares_adapter(const ParameterSpec& projection);
/// True if the adapter is named after this projection: its own, or a shared one of which it is the
/// first.
bool begins_adapter(const ParameterSpec& projection);
/// Returns the first row of B that belongs to the projection.
int64_t lora_b_begin(const ParameterSpec& projection);

/// Returns the two matrices of an adapter of rank r (LoRA, arXiv 2106.09685) on a projection, named
/// and initialized as in PEFT: A uniform within 1 / sqrt(in), B zero. The B of a shared adapter has
/// the rows of all its projections.
ParameterSpec lora_a_of(const ParameterSpec& projection, int64_t r);
ParameterSpec lora_b_of(const ParameterSpec& projection, int64_t r);

/// True if it is never trained. A buffer is not counted as a parameter, and is held and saved in
/// fp32.
bool is_buffer(ParameterRole role);
/// True if ranks use a copy in the compute dtype when its values are sharded or trained on the
/// host: the matrices of layers.
inline bool is_copied_for_use(const ParameterSpec& parameter) {
  return parameter.role == ParameterRole::kProjection;
}
/// True for a matrix of an adapter.
bool is_lora(ParameterRole role);
/// True for a reward model's value head, which is saved in a file of its own.
bool is_value_head(ParameterRole role);

/// Returns weight and bias of a reward model's head, initialized as torch's linear layers: uniform
/// within 1 / sqrt(hidden_size).
std::vector<ParameterSpec> value_head_parameters(int64_t hidden_size);

/// The parameters of a trained model, by name.
class ParameterTable {
 public:
  ParameterTable() = default;
  explicit ParameterTable(const std::vector<ParameterSpec>& parameters);

  void add(const ParameterSpec& parameter);
  /// Throws std::logic_error if the name is unknown.
  const ParameterSpec& of(const std::string& name) const;

 private:
  std::map<std::string, ParameterSpec, std::less<>> by_name_;
};

}  // namespace longspan
