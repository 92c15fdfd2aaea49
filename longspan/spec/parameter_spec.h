// A model's parameter as data (ParameterSpec). The optimizer, sharding, freezing, adapters,
// estimates, random models and saving query the ParameterSpec, and never test part of a name. No
// torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "longspan/spec/norm_kind.h"

namespace longspan {

enum class ParameterRole {
  kEmbedding,      ///< [vocabulary, hidden], the embedding of tokens; also the head if tied
  kNorm,           ///< the weight of a norm
  kProjection,     ///< [out, in], the matrix of a linear layer within a layer of the model
  kBias,           ///< the bias of a linear layer or another operation
  kSinks,          ///< [heads], the logits of attention sinks (AttentionSpec::has_sinks)
  kConvolution,    ///< [channels, 1, tokens], a depthwise convolution
  kPatches,        ///< [hidden, channels, time, height, width], from pixels to hidden states
  kPositions,      ///< [positions, hidden], added to hidden states
  kFeatures,       ///< [in, out], from patches' hidden states to the language model's hidden states
  kLogDecay,       ///< logarithms of the decay rates of a recurrence's states
  kRouter,         ///< [experts, hidden], scores each expert
  kBuffer,         ///< read by the model, never trained, saved unchanged
  kHead,           ///< [vocabulary, hidden], from the last hidden states to logits
  kLoraA,          ///< [r, in], the first matrix of an adapter
  kLoraB,          ///< [out, r], the second matrix of an adapter
  kLoraMagnitude,  ///< [out], the lengths of the rows of an adapted matrix (DoRA)
  kValueHead,      ///< [1, hidden]
  kValueHeadBias,  ///< [1]
};

/// The dtype in which values are used.
enum class ParameterUse {
  kCast,    ///< cast to the compute dtype at every use; may be held in the compute dtype
  kAsHeld,  ///< used in the dtype of the held values
};

/// The part of a model of texts and pictures to which a parameter belongs. Users can train each
/// part separately.
enum class ModelPart {
  kLanguage,
  kTower,      ///< from pixels to hidden states of patches
  kProjector,  ///< from hidden states of patches to hidden states of the language model
};

/// Initial values of a new parameter.
struct Initialisation {
  enum class Kind { kZeros, kOnes, kNormal, kUniform, kLogUniform };
  Kind kind = Kind::kZeros;
  /// kNormal: the standard deviation. kUniform: values in [-scale, scale). kLogUniform: logarithms
  /// of numbers in [0.01, scale).
  double scale = 0.0;

  bool operator==(const Initialisation&) const = default;
};

/// A unit is a set of parameters that are used together and that ZeRO-3 gathers together. The
/// layers are units 1 to num_layers, and an untied head is unit num_layers + 1. The units of a
/// vision tower begin at num_layers + 2 (ModelSpec::vision_unit), even if the head is tied: unit
/// num_layers + 1 then has no parameters.
constexpr int kAlwaysThere = -1;   ///< the last norm and a value head, which are never released
constexpr int kEmbeddingUnit = 0;  ///< the embedding, and the head if tied

/// The part of a tensor in the files that contains the parameter: rows from `begin` on, along dim
/// 0. The parts of one tensor are consecutive in the list of parameters and cover the whole tensor.
struct StoredPart {
  int64_t begin, num_rows;  // num_rows: rows of the whole tensor
  /// The parameter is a single row of the tensor: parts are stacked along an additional dim 0, and
  /// matrices are stored as [in, out].
  bool stacked = false;
  /// Number of matrices whose rows are concatenated: the tensor is [num_matrices, num_rows /
  /// num_matrices, columns]. 0: the tensor is one matrix. In some files each matrix is transposed.
  int64_t num_matrices = 0;

  bool operator==(const StoredPart&) const = default;
};

/// An alternative storage of a parameter in the files of a mixture of experts: in one tensor for
/// all experts of a layer, as in the published files of Qwen3.5's mixtures.
struct StackedPlace {
  std::string tensor;
  std::vector<int64_t> shape;  // [experts, rows per expert, columns]
  int64_t begin;               // index of the first element of the parameter, which is contiguous

  bool operator==(const StackedPlace&) const = default;
};

/// An expert of a layer: the expert's index, and the layer's number of experts.
struct ExpertNumber {
  int64_t number, count;

  bool operator==(const ExpertNumber&) const = default;
};

/// Returns the place (a rank) of the expert if `num_places` places divide a layer's
/// experts; num_places must divide the count. Place p has count / num_places experts, beginning at
/// p * count / num_places.
inline int place_of(const ExpertNumber& expert, int num_places) {
  return static_cast<int>(expert.number / (expert.count / num_places));
}

struct ParameterSpec {
  std::string name;  ///< identifies the parameter; code never tests parts of the name
  std::vector<int64_t> shape;
  ParameterRole role;
  int unit;
  std::optional<int64_t> layer;  ///< 0-based; none outside the layers
  /// The part of a layer (self_attn, mlp, input_layernorm, ...). Users name modules to train only
  /// these modules. Empty outside the layers.
  std::string module;
  /// The short name of the linear layer (q_proj, down_proj, ...), by which users choose adapted
  /// layers; empty: not adaptable.
  std::string lora_target;
  /// The short name of a linear layer that gets no adapter even if users name the layer, because
  /// PEFT adapts other layers of the same name (MlpAdapters).
  std::string passed_over_target;
  /// Full name of the adapted linear layer: this linear layer, or the fused linear layer in the
  /// files. The name is the prefix of the adapter's matrices in PEFT. Empty if lora_target is
  /// empty.
  std::string adapted_linear;
  /// Expands latents to keys and values (AttentionSpec::latent_dim).
  bool expands_latents = false;
  bool decays;  ///< subject to weight decay
  ParameterUse use;
  Initialisation init;
  /// The tensor in Hugging Face's files that contains the parameter, as the whole tensor or as a
  /// part.
  std::string stored_as;
  std::optional<StoredPart> stored_part;
  /// Alternative storage, for reading only, if the files have no tensor `stored_as`. Saving uses
  /// `stored_as`.
  std::optional<StackedPlace> stored_in_stack;
  /// The expert of the parameter, also for an adapter's matrices; none: every token uses the
  /// parameter.
  std::optional<ExpertNumber> expert;
  ModelPart part = ModelPart::kLanguage;

  int64_t num_elements() const;
  bool operator==(const ParameterSpec&) const = default;
};

/// Returns the spec of a parameter outside the layers, with the defaults of its role: weight decay
/// applies to matrices, but not to norms and biases. Norms are initialized to ones, biases and
/// other parameters without `init` to zeros.
ParameterSpec parameter_spec(std::string name, std::vector<int64_t> shape, ParameterRole role,
                             int unit, Initialisation init = {});

/// Returns the initialization of a norm's weight that makes the norm multiply by 1: ones, or zeros
/// if the norm adds 1 to its weight.
Initialisation first_values(NormKind norm);

/// Returns the shape of the tensor in the files that contains the parameter, alone or with other
/// parameters.
std::vector<int64_t> stored_shape(const ParameterSpec& parameter);
/// True if the parameter is a whole tensor of the files, or the first part of a tensor.
bool begins_stored(const ParameterSpec& parameter);

/// Names in value_head.safetensors, as in TRL's AutoModelForCausalLMWithValueHead and
/// LLaMA-Factory: [1, hidden] and [1].
inline constexpr const char* kValueHeadWeight = "v_head.summary.weight";
inline constexpr const char* kValueHeadBias = "v_head.summary.bias";

/// Names in PEFT of the matrices of an adapter on a projection.
std::string lora_a_name(const ParameterSpec& projection);
std::string lora_b_name(const ParameterSpec& projection);
/// Names in PEFT of the matrices of an adapter on the linear layer with the full name `linear`.
std::string lora_a_name(const std::string& linear);
std::string lora_b_name(const std::string& linear);
/// Name in PEFT of the magnitudes of such an adapter (DoRA, arXiv 2402.09353).
std::string lora_magnitude_name(const ParameterSpec& projection);
std::string lora_magnitude_name(const std::string& linear);

/// True if the projection shares its adapter with other projections that are rows of the same
/// tensor in the files (StoredPart). For PEFT these projections are one linear layer. The
/// projections share A, and each projection has its own rows of B.
bool shares_adapter(const ParameterSpec& projection);
/// True for the projection that names its adapter: the only projection, or the first projection, of
/// the adapter.
bool begins_adapter(const ParameterSpec& projection);
/// Returns the first row of B that belongs to the projection.
int64_t lora_b_begin(const ParameterSpec& projection);

/// Returns the two matrices of an adapter of rank r (LoRA, arXiv 2106.09685) on a projection, named
/// and initialized as in PEFT: A is uniform in [-1 / sqrt(in), 1 / sqrt(in)], and B is zero. The B
/// of a shared adapter has the rows of all projections that share the adapter.
ParameterSpec lora_a_of(const ParameterSpec& projection, int64_t r);
ParameterSpec lora_b_of(const ParameterSpec& projection, int64_t r);
/// Returns the magnitudes of such an adapter: a number for each row of B. The first values depend
/// on the projection's weight.
ParameterSpec lora_magnitude_of(const ParameterSpec& projection);

/// True for a buffer, which is never trained. A buffer is not counted as a parameter, and is held
/// and saved in fp32.
bool is_buffer(ParameterRole role);
/// True for the matrices of layers. If the values of such a matrix are sharded or trained on the
/// host, ranks use a copy in the compute dtype.
inline bool is_copied_for_use(const ParameterSpec& parameter) {
  return parameter.role == ParameterRole::kProjection;
}
/// True for a matrix of an adapter, and for its magnitudes.
bool is_lora(ParameterRole role);
/// True for a reward model's value head, which is saved in a separate file.
bool is_value_head(ParameterRole role);

/// Returns weight and bias of a reward model's head, initialized like torch's linear layers:
/// uniform in [-1 / sqrt(hidden_size), 1 / sqrt(hidden_size)].
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
