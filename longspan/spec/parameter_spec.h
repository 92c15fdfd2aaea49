// What a parameter of a model is, as data: optimizer, sharding, freezing, adapters, accounts,
// random models and saving ask this, and never a piece of a name. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "longspan/spec/norm_kind.h"

namespace longspan {

enum class ParameterRole {
  kEmbedding,    ///< [vocabulary, hidden], looked up by token; also the head where the two are tied
  kNorm,         ///< the weight of a norm
  kProjection,   ///< the matrix [out, in] of a linear layer within a layer of the model
  kBias,         ///< what a linear layer, or another, adds
  kSinks,        ///< [heads], the logits of attention's sinks (AttentionSpec::has_sinks)
  kConvolution,  ///< [channels, 1, tokens], of a convolution of each channel by itself
  kLogDecay,     ///< logarithms of how fast a recurrence's states decay
  kRouter,       ///< [experts, hidden], from a hidden state to a score of each expert
  kBuffer,       ///< numbers that the model reads and nothing trains, saved as they were read
  kHead,         ///< [vocabulary, hidden], from the last hidden states to logits
  kLoraA,        ///< [r, in], the first matrix of an adapter
  kLoraB,        ///< [out, r], the second
  kValueHead,    ///< [1, hidden], from a hidden state to one number
  kValueHeadBias,  ///< [1]
};

/// In which dtype values are read.
enum class ParameterUse {
  kCast,    ///< cast to the dtype of computation at every use: what holds it in that loses nothing
  kAsHeld,  ///< in the dtype that it is held in
};

/// What a new parameter holds.
struct Initialisation {
  enum class Kind { kZeros, kOnes, kNormal, kUniform, kLogUniform };
  Kind kind = Kind::kZeros;
  /// kNormal: the standard deviation; kUniform: within [-scale, scale); kLogUniform: logarithms of
  /// numbers within [0.01, scale).
  double scale = 0.0;

  bool operator==(const Initialisation&) const = default;
};

/// Units: parameters that are used together, which ZeRO-3 gathers together. The layers are units 1
/// to their number, a head of its own is the one after.
constexpr int kAlwaysThere = -1;   ///< the last norm and a value head: they are never let go
constexpr int kEmbeddingUnit = 0;  ///< also the head where the two are tied

/// Which part of a stored tensor a parameter is: from row `begin` on, along dim 0, as many as it
/// has. The parts of one tensor follow each other in the list of parameters and make all of it.
struct StoredPart {
  int64_t begin, num_rows;  // num_rows: of the whole tensor
  /// The parameter is one such row: parts are stacked along a dim of their own, matrices as
  /// [in, out].
  bool stacked = false;

  bool operator==(const StoredPart&) const = default;
};

/// Where the files of a mixture of experts may hold a parameter in the place of a tensor of its
/// own: within one of all of a layer's experts, as Qwen3.5's mixtures are published.
struct StackedPlace {
  std::string tensor;
  std::vector<int64_t> shape;  // [experts, rows of each, columns]
  int64_t begin;               // the parameter's first number, behind which all of it lies

  bool operator==(const StackedPlace&) const = default;
};

/// One of the experts of a layer: which one, of how many.
struct ExpertNumber {
  int64_t number, count;

  bool operator==(const ExpertNumber&) const = default;
};

/// The place of the expert where so many places, which divide the count, share out a layer's
/// experts: place p has those from p * count / num_places on.
inline int place_of(const ExpertNumber& expert, int num_places) {
  return static_cast<int>(expert.number / (expert.count / num_places));
}

struct ParameterSpec {
  std::string name;  ///< by which it is known here, and nothing is read from its pieces
  std::vector<int64_t> shape;
  ParameterRole role;
  int unit;
  std::optional<int64_t> layer;  ///< counted from 0; none outside of the layers
  /// Within a layer: the part that a user names to train it alone (self_attn, mlp,
  /// input_layernorm, ...). Empty outside of the layers.
  std::string module;
  /// The linear layer that a user names to give it an adapter (q_proj, down_proj, ...); empty: it
  /// can have none.
  std::string lora_target;
  /// As lora_target, of a linear layer that has no adapter even where a user names it, since PEFT
  /// gives those of that name to others (MlpAdapters).
  std::string passed_over_target;
  /// The full name of the linear layer that such an adapter is on: its own, or the one that the
  /// files have of several. PEFT puts the adapter's matrices below it. Empty where lora_target is.
  std::string adapted_linear;
  /// Keys and values are made of latents by it (AttentionSpec::latent_dim).
  bool expands_latents = false;
  bool decays;  ///< by weight decay
  ParameterUse use;
  Initialisation init;
  /// The tensor of Hugging Face's files that holds it: alone, or as a part of it.
  std::string stored_as;
  std::optional<StoredPart> stored_part;
  /// Files that have no tensor of that name may have this one. What is saved has the other.
  std::optional<StackedPlace> stored_in_stack;
  /// The expert whose it is, an adapter's matrices too; none: every token goes through it.
  std::optional<ExpertNumber> expert;

  int64_t num_elements() const;
  bool operator==(const ParameterSpec&) const = default;
};

/// A parameter outside of the layers, treated as its role mostly is: matrices decay, norms and
/// biases do not; norms begin as ones and biases as zeros, and so does what has no other `init`.
ParameterSpec parameter_spec(std::string name, std::vector<int64_t> shape, ParameterRole role,
                             int unit, Initialisation init = {});

/// How the weight of a norm is initialised, so that the norm multiplies by 1: ones, or zeros where
/// the norm adds 1 to its weight.
Initialisation first_values(NormKind norm);

/// The shape of the tensor in the files that holds the parameter, alone or with others.
std::vector<int64_t> stored_shape(const ParameterSpec& parameter);
/// Is the parameter stored as a tensor of its own, or as the first part of one?
bool begins_stored(const ParameterSpec& parameter);

/// Names as TRL's AutoModelForCausalLMWithValueHead and LLaMA-Factory write them in
/// value_head.safetensors: [1, hidden] and [1].
inline constexpr const char* kValueHeadWeight = "v_head.summary.weight";
inline constexpr const char* kValueHeadBias = "v_head.summary.bias";

/// The matrices of an adapter on a projection, as PEFT names them.
std::string lora_a_name(const ParameterSpec& projection);
std::string lora_b_name(const ParameterSpec& projection);
/// The same of a linear layer of this full name.
std::string lora_a_name(const std::string& linear);
std::string lora_b_name(const std::string& linear);

/// Do the projections in one tensor of the files, where they are rows (StoredPart), share one
/// adapter? PEFT sees one linear layer there: all have its A, and each has its rows of B.
bool shares_adapter(const ParameterSpec& projection);
/// Is the adapter named by this projection: its own, or shared and this is the first of them?
bool begins_adapter(const ParameterSpec& projection);
/// The first row of B that is the projection's.
int64_t lora_b_begin(const ParameterSpec& projection);

/// The two matrices of an adapter of rank r (LoRA, arXiv 2106.09685) on a projection, as PEFT names
/// and starts them: A uniform within 1 / sqrt(in), B zeros. Of a shared one B has the rows of all.
ParameterSpec lora_a_of(const ParameterSpec& projection, int64_t r);
ParameterSpec lora_b_of(const ParameterSpec& projection, int64_t r);

/// Does training leave it as it is, whatever else is trained? It is no parameter to a user, and is
/// held and saved in fp32.
bool is_buffer(ParameterRole role);
/// Do ranks use a copy of it in the dtype of computation where its values are divided or trained on
/// the host? So they do with the matrices of layers.
inline bool is_copied_for_use(const ParameterSpec& parameter) {
  return parameter.role == ParameterRole::kProjection;
}
/// Is it a matrix of an adapter?
bool is_lora(ParameterRole role);
/// Is it part of a reward model's value head, which is saved in a file of its own?
bool is_value_head(ParameterRole role);

/// Weight and bias of a reward model's head. They begin as torch begins a linear layer, uniform
/// within 1 / sqrt(hidden_size).
std::vector<ParameterSpec> value_head_parameters(int64_t hidden_size);

/// The parameters of a model that is trained, by name.
class ParameterTable {
 public:
  ParameterTable() = default;
  explicit ParameterTable(const std::vector<ParameterSpec>& parameters);

  void add(const ParameterSpec& parameter);
  /// Throws std::logic_error where there is none of that name.
  const ParameterSpec& of(const std::string& name) const;

 private:
  std::map<std::string, ParameterSpec, std::less<>> by_name_;
};

}  // namespace longspan
