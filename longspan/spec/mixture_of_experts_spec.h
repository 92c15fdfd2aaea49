// A mixture of experts, as data. No torch. What it computes is in layers/mixture_of_experts.h.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "longspan/spec/gated_mlp_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"

namespace longspan {

/// How a token's experts are chosen and weighed. Scores are computed in fp32.
struct RouterSpec {
  enum class Scores {
    kSoftmax,  ///< over all experts (Switch Transformers, arXiv 2101.03961)
    kSigmoid,  ///< of each by itself (DeepSeek-V3, arXiv 2412.19437)
    /// Over all experts too, but experts are chosen by their logits, and weighed by a softmax over
    /// the logits of the chosen alone (gpt-oss, arXiv 2508.10925).
    kSoftmaxOfChosen,
  };
  Scores scores = Scores::kSoftmax;
  /// Divides the weights of the chosen by their sum plus `epsilon`.
  bool normalises = false;
  double epsilon = 0.0;
  double scale = 1.0;  ///< what weights are multiplied by in the end (routed_scaling_factor)
  /// Chooses by scores plus a buffer (e_score_correction_bias, arXiv 2408.15664), and weighs by
  /// scores alone.
  bool has_correction_bias = false;
  /// Experts in groups of equal size, of which those with the largest sums of their two best scores
  /// are chosen from.
  int64_t num_groups = 1, groups_per_token = 1;
  bool has_bias = false;      ///< of the logits
  std::string name = "gate";  ///< in the names of its parameters

  bool operator==(const RouterSpec&) const = default;
};

/// What sets them apart, beside the function that makes scores of logits.
struct ScoreTraits {
  /// The scores of a token sum to 1, as the auxiliary loss that balances the load wants them.
  bool sum_to_one;
  /// Logits choose the experts, and a softmax over those of the chosen alone weighs them: else
  /// scores do both.
  bool by_chosen_logits;
};
constexpr ScoreTraits traits_of(RouterSpec::Scores scores) {
  switch (scores) {
    case RouterSpec::Scores::kSoftmax:
      return {.sum_to_one = true, .by_chosen_logits = false};
    case RouterSpec::Scores::kSigmoid:
      return {.sum_to_one = false, .by_chosen_logits = false};
    case RouterSpec::Scores::kSoftmaxOfChosen:
      return {.sum_to_one = true, .by_chosen_logits = true};
  }
  throw std::logic_error("no scores of a router");
}

/// Gated MLPs to which every token goes, beside the experts.
struct SharedExpertSpec {
  int64_t intermediate_size = 0;
  std::string name;       ///< shared_experts or shared_expert, in the names of its parameters
  bool is_gated = false;  ///< multiplied by sigmoid(<name>_gate x), one number a token

  bool operator==(const SharedExpertSpec&) const = default;
};

/// Which MLPs of a model PEFT gives adapters where a user names their linear layers: the experts
/// that routers choose, or those that every token goes through, in these layers and in others. It
/// is never both: on transformers 5 it rewrites the names of some families into those of stacked
/// parameters, which experts alone have.
enum class MlpAdapters { kExperts, kOthers };

/// A feed-forward: the sum over the experts that a token's router chooses of weight *
/// down(activation(gate x, up x)), and of a shared expert.
struct MixtureOfExpertsSpec {
  int64_t num_experts = 0, experts_per_token = 0;
  int64_t expert_size = 0;  ///< intermediate dim of one
  RouterSpec router;
  SharedExpertSpec shared;               ///< none where its intermediate_size is 0
  GateActivation activation = Swiglu{};  ///< of the experts; a shared one's is Swiglu
  bool bias = false;                     ///< of the experts' linear layers
  /// A tensor of the files holds a matrix of all experts, and another their biases. One matrix
  /// makes gate and up, whose numbers take turns: gate_up_proj.
  bool stacked = false;
  MlpAdapters adapters = MlpAdapters::kExperts;

  bool has_shared() const { return shared.intermediate_size > 0; }
  bool operator==(const MixtureOfExpertsSpec&) const = default;
};

void list_parameters(const MixtureOfExpertsSpec& mixture, LayerParameters& list);
/// Takes lora_target from the linear layers of MLPs that PEFT passes over in a model with this
/// mixture, and leaves it as their passed_over_target: of one layer's parameters, with experts or
/// without.
void pass_over_unadapted(const MixtureOfExpertsSpec& mixture, std::vector<ParameterSpec>& layer);
/// Of an expert's number where a backward is to know it: an integer with a sign.
constexpr int64_t expert_number_bytes(int64_t num_experts) {
  return num_experts <= (int64_t{1} << 15) ? 2 : 4;
}
/// Numbers that the kernels which work on all experts at once (kernels/grouped_gemm.h) read
/// together: model dim, intermediate dim and the rank of adapters are multiples, or they do not.
inline constexpr int64_t kGroupedNumbers = 8;
FeedForwardCost cost_of(const MixtureOfExpertsSpec& mixture, int64_t hidden_size);
std::string sizes_in(const MixtureOfExpertsSpec& mixture);
inline const MixtureOfExpertsSpec* experts_in(const MixtureOfExpertsSpec& mixture) {
  return &mixture;
}

}  // namespace longspan
