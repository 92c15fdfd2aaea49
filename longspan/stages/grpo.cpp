// grpo: rollouts of a policy, with rewards.
#include <fmt/format.h>

#include "longspan/data/stage_encoders.h"
#include "longspan/registers/policy_loss.h"
#include "longspan/settings/method_settings.h"
#include "longspan/settings/preference_settings.h"
#include "longspan/stages/policy_objective.h"
#include "longspan/stages/stage_parts.h"

namespace longspan {
namespace {

constexpr std::string_view kLoss[] = {"loss_type",
                                      "advantage_estimator",
                                      "scale_rewards",
                                      "importance_sampling_level",
                                      "delta",
                                      "beta",
                                      "kl_estimator",
                                      "kl_in_reward",
                                      "use_bias_correction_kl",
                                      "top_entropy_quantile"};
constexpr StageKeys kLossKeys{.keys = kLoss, .use = "rewarded rollouts"};
constexpr const StageKeys* kKeys[] = {&kRolloutKeys, &kUpdateKeys, &kLossKeys, &kReferenceKeys};

std::vector<std::string> problems(const PreferenceSettings& config, const MethodSettings& method) {
  std::vector<std::string> problems;
  const auto demand = [&](bool holds, std::string_view problem) {
    if (!holds) problems.emplace_back(problem);
  };
  const PolicySettings& policy = config.policy;
  const PolicyLoss loss = policy_loss_of(policy);
  demand(policy.num_generations >= loss.advantages.least_rollouts,
         fmt::format("num_generations: {} is too few for advantage_estimator: {}, which compares "
                     "at least {}; give more",
                     policy.num_generations, loss.advantages.name, loss.advantages.least_rollouts));
  demand(
      method.lora_dropout == 0 || (policy.num_iterations == 1 && policy.top_entropy_quantile == 1),
      "num_iterations above 1 and top_entropy_quantile below 1 compute each rollout twice, which "
      "lora_dropout would make different; set lora_dropout: 0");
  demand(policy.epsilon < 1 || loss.kind.use == RatioUse::kWeight,
         "epsilon: the lower clip is 1 - epsilon; give less than 1");
  demand(!policy.delta || *policy.delta > 1 + policy.epsilon_high.value_or(policy.epsilon),
         "delta must be above 1 + epsilon_high, the upper clip; give more");
  demand(loss.kind.use != RatioUse::kWeight || policy.epsilon_high,
         "loss_type: cispo clips the ratio at epsilon_high itself (for example 5); give it");
  demand(loss.kind.use == RatioUse::kClipped || loss.level == RatioLevel::kToken,
         fmt::format("importance_sampling_level: sequence is for losses that clip the ratio, and "
                     "loss_type: {} weights tokens by it; remove the key",
                     loss.kind.name));
  demand(!policy.importance_sampling_clip_min ||
             *policy.importance_sampling_clip_min <= policy.importance_sampling_clip_max,
         "importance_sampling_clip_min is above importance_sampling_clip_max; lower it");
  return problems;
}

std::string document_name(const Example& example, size_t i) {
  return fmt::format("rollout {} of {}", i + 1, example.documents.size());
}

std::string summary(const PreferenceSettings& config) {
  const PolicySettings& policy = config.policy;
  std::string text = fmt::format(
      "grpo, loss_type {}, {} rollouts of a group, shared prompts computed "
      "once",
      policy.loss_type, policy.num_generations);
  if (policy.num_iterations > 1) text += fmt::format("; {} updates each", policy.num_iterations);
  if (policy.beta > 0) text += fmt::format("; KL with beta {}", policy.beta);
  return text;
}

bool compares(const PreferenceSettings& config) { return config.policy.beta > 0; }

std::unique_ptr<Objective> make(const ObjectiveContext& context) {
  return make_policy_objective(context);
}

constexpr DrawnMean kDrawn[] = {
    {.name = "reward", .log_name = "reward", .title = "Reward", .y_label = "mean"},
    kDrawnEntropy,
    kDrawnKl,
    kDrawnLength,
    kDrawnTruncated,
    kDrawnLow,
    kDrawnHigh,
    kDrawnMismatch};

}  // namespace

extern const Stage kGrpo{
    .name = "grpo",
    .title = "reinforcement learning",
    .help = "rollouts of a policy, with rewards: GRPO, DAPO, GSPO, CISPO, RLOO and others",
    .keys = kKeys,
    .rows = RowKind::kQuestion,
    .rollouts = RolloutUse::kRewards,
    .packs = false,
    .trains_all_answers = false,
    .uses_lm_head = true,
    .has_value_head = false,
    .compares_distributions = false,
    .deals_rows = false,
    .drawn = kDrawn,
    .problems = problems,
    .encode = encode_prompts,
    .document_name = document_name,
    .summary = summary,
    .has_reference = compares,
    .make = make,
};

}  // namespace longspan
