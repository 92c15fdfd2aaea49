// A mixture of experts, as data. layers/mixture_of_experts.h has the computation. No torch.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "longspan/spec/gated_mlp_spec.h"
#include "longspan/spec/layer_cost.h"
#include "longspan/spec/layer_parameters.h"

namespace longspan {

/// Choice and weights of a token's experts. Scores are computed in fp32.
struct RouterSpec {
  enum class Scores {
    kSoftmax,  ///< softmax over all experts (Switch Transformers, arXiv 2101.03961)
    kSigmoid,  ///< sigmoid of each logit (DeepSeek-V3, arXiv 2412.19437)
    /// Scores are a softmax over all experts. Logits choose the experts, and the weights are a
    /// softmax over the logits of the chosen experts (gpt-oss, arXiv 2508.10925).
    kSoftmaxOfChosen,
  };
  Scores scores = Scores::kSoftmax;
  /// Divides the weights of the chosen experts by their sum plus `epsilon`.
  bool normalises = false;
  double epsilon = 0.0;
  double scale = 1.0;  ///< factor of the final weights (routed_scaling_factor)
  /// Experts are chosen by scores plus a buffer (e_score_correction_bias, arXiv 2408.15664). The
  /// weights are the scores without the buffer.
  bool has_correction_bias = false;
  /// Experts form num_groups groups of equal size. A token's experts are chosen from
  /// groups_per_token groups: the groups with the largest sums of their two best scores.
  int64_t num_groups = 1, groups_per_token = 1;
  bool has_bias = false;      ///< the router's linear layer has a bias
  std::string name = "gate";  ///< in the names of the parameters

  bool operator==(const RouterSpec&) const = default;
};

/// Properties of a score function, besides its formula.
struct ScoreTraits {
  /// The scores of a token sum to 1, as the auxiliary load-balancing loss requires.
  bool sum_to_one;
  /// Logits choose the experts, and a softmax over the chosen logits gives the weights. Otherwise
  /// scores choose the experts and give the weights.
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

/// Gated MLPs that every token uses, in addition to the chosen experts.
struct SharedExpertSpec {
  int64_t intermediate_size = 0;
  std::string name;       ///< shared_experts or shared_expert, in the names of the parameters
  bool is_gated = false;  ///< output is multiplied by sigmoid(<name>_gate x), one element per token

  bool operator==(const SharedExpertSpec&) const = default;
};

/// The MLPs that get adapters if a user names the linear layers of MLPs, as in PEFT: either the
/// experts that routers choose, or all other MLPs (shared experts and dense layers). Never both:
/// with transformers 5, PEFT replaces some families' names of linear layers by names of stacked
/// parameters, which only experts have.
enum class MlpAdapters { kExperts, kOthers };

/// A feed-forward: the sum over a token's chosen experts of weight * down(activation(gate x, up
/// x)), plus a shared expert.
struct MixtureOfExpertsSpec {
  int64_t num_experts = 0, experts_per_token = 0;
  int64_t expert_size = 0;  ///< intermediate dim of one expert
  RouterSpec router;
  SharedExpertSpec shared;               ///< absent if intermediate_size is 0
  GateActivation activation = Swiglu{};  ///< activation of the experts; a shared expert has Swiglu
  bool bias = false;                     ///< the experts' linear layers have biases
  /// The files have one matrix for all experts, and one tensor for all experts' biases.
  /// gate_up_proj is gate and up in one matrix, interleaved.
  bool stacked = false;
  /// The files have the experts' matrices only in the two tensors of
  /// ParameterSpec::stored_in_stack. Must not be combined with `stacked`, for which gate and up are
  /// one matrix in the program too.
  bool stored_in_stacks = false;
  MlpAdapters adapters = MlpAdapters::kExperts;

  bool has_shared() const { return shared.intermediate_size > 0; }
  bool operator==(const MixtureOfExpertsSpec&) const = default;
};

void list_parameters(const MixtureOfExpertsSpec& mixture, LayerParameters& list);
/// Moves lora_target to passed_over_target for the linear layers of MLPs that PEFT does not adapt
/// in a model with this mixture. `layer`: the parameters of one layer, which may have no experts.
void pass_over_unadapted(const MixtureOfExpertsSpec& mixture, std::vector<ParameterSpec>& layer);
/// Returns the bytes of an expert's index, stored for the backward as a signed integer.
constexpr int64_t expert_number_bytes(int64_t num_experts) {
  return num_experts <= (int64_t{1} << 15) ? 2 : 4;
}
/// Elements that one load of the grouped-gemm kernels (kernels/grouped_gemm.h) reads. For these
/// kernels, model dim, intermediate dim and rank of adapters must be multiples of kGroupedNumbers.
inline constexpr int64_t kGroupedNumbers = 8;
FeedForwardCost cost_of(const MixtureOfExpertsSpec& mixture, int64_t hidden_size);
std::string sizes_in(const MixtureOfExpertsSpec& mixture);
inline const MixtureOfExpertsSpec* experts_in(const MixtureOfExpertsSpec& mixture) {
  return &mixture;
}

}  // namespace longspan
