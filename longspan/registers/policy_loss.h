// The losses of stage grpo: their names and properties. The formula is in objectives/policy.h. No
// torch.
#pragma once

#include <string_view>
#include <vector>

#include "longspan/registers/advantage.h"

namespace longspan {

struct PolicySettings;

/// The ratio of the policy's to the old policy's probabilities that a loss clips.
enum class RatioLevel {
  kToken,         // of each token
  kSequenceMean,  // geometric mean over a rollout's tokens (GSPO, arXiv 2507.18071)
  kSequence,      // of the whole rollout
};

/// The use of the ratio r with the advantage A. lo, hi: epsilon and epsilon_high.
enum class RatioUse {
  kClipped,     // -min(r A, clip(r, 1 - lo, 1 + hi) A) (PPO, arXiv 1707.06347)
  kWeight,      // -stop_gradient(min(r, hi)) A log p (CISPO, arXiv 2506.13585, as in TRL)
  kRangeWeight  // -stop_gradient(clip(r, 1 - lo, 1 + hi)) A log p (CISPO, as in verl)
};

/// The denominator of the sum over tokens. Batch: the global batch of a step.
enum class PolicyMean {
  kOfSequences,    // mean over rollouts of the mean over their tokens
  kOfTokens,       // mean over the tokens of the batch
  kOfFixedLength,  // sum divided by rollouts times max_completion_length
  kOfSums,         // mean over rollouts of a loss of the whole rollout
};

/// An estimator of KL(policy || reference) from one token. d = log p of the policy - log p of the
/// reference.
enum class KlEstimator {
  kFirst,   // k1: d
  kSecond,  // k2: d^2 / 2
  kThird,   // k3: exp(-d) + d - 1
};

struct PolicyLossKind {
  std::string_view name;  // the value of loss_type
  RatioLevel level;
  RatioUse use;
  PolicyMean mean;
  std::string_view advantages;  // default of advantage_estimator
  KlEstimator kl;               // default of kl_estimator
  bool kl_in_reward;            // default of kl_in_reward
};

/// The register, in the order of the help.
inline constexpr PolicyLossKind kPolicyLosses[] = {
    {"grpo", RatioLevel::kToken, RatioUse::kClipped, PolicyMean::kOfSequences, "grpo",
     KlEstimator::kThird, false},
    {"bnpo", RatioLevel::kToken, RatioUse::kClipped, PolicyMean::kOfTokens, "grpo",
     KlEstimator::kThird, false},
    {"dr_grpo", RatioLevel::kToken, RatioUse::kClipped, PolicyMean::kOfFixedLength, "grpo",
     KlEstimator::kThird, false},
    {"dapo", RatioLevel::kToken, RatioUse::kClipped, PolicyMean::kOfTokens, "grpo",
     KlEstimator::kThird, false},
    {"gspo", RatioLevel::kSequenceMean, RatioUse::kClipped, PolicyMean::kOfSequences, "grpo",
     KlEstimator::kThird, false},
    {"cispo", RatioLevel::kToken, RatioUse::kWeight, PolicyMean::kOfTokens, "grpo",
     KlEstimator::kThird, false},
    {"cispo_range", RatioLevel::kToken, RatioUse::kRangeWeight, PolicyMean::kOfTokens, "grpo",
     KlEstimator::kThird, false},
    {"rloo", RatioLevel::kSequence, RatioUse::kClipped, PolicyMean::kOfSums, "rloo",
     KlEstimator::kFirst, true},
    {"reinforce_plus_plus_baseline", RatioLevel::kToken, RatioUse::kClipped, PolicyMean::kOfTokens,
     "reinforce_plus_plus_baseline", KlEstimator::kSecond, false},
};
std::vector<std::string_view> names_of_policy_losses();

inline constexpr std::string_view kKlEstimatorNames[] = {"k1", "k2", "k3"};

/// Whether the correction of the sampler's probabilities is of tokens or whole rollouts, and
/// whether ratios outside of the bounds are clamped or masked.
struct SamplerCorrection {
  bool corrects = false, of_sequences = false, masks = false;
};
inline constexpr std::string_view kCorrectionNames[] = {"none", "token_truncate", "token_mask",
                                                        "sequence_truncate", "sequence_mask"};

/// A loss with the choices of a configuration. Throws std::logic_error for unknown names, which the
/// configuration excludes.
struct PolicyLoss {
  const PolicyLossKind& kind;
  RatioLevel level;
  const AdvantageEstimatorKind& advantages;
  KlEstimator kl;
  bool kl_in_reward;
  SamplerCorrection correction;
};
PolicyLoss policy_loss_of(const PolicySettings& settings);

}  // namespace longspan
