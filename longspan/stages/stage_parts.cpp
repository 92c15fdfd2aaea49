#include "longspan/stages/stage_parts.h"

#include <fmt/format.h>

#include "longspan/rows/example.h"
#include "longspan/settings/preference_settings.h"

namespace longspan {
namespace {

constexpr std::string_view kTrained[] = {"mask_history", "train_on_prompt"},
                           kNoise[] = {"neftune_noise_alpha"}, kPacking[] = {"packing"},
                           kNeat[] = {"neat_packing"}, kPreference[] = {"pref_beta", "pref_ftx"},
                           kReference[] = {"ref_model", "ref_model_adapters"},
                           kPrecomputed[] = {"precompute_ref_log_probs"},
                           kSharedPrompt[] = {"pref_share_prompt"},
                           kRollouts[] = {"rollout",
                                          "rollouts",
                                          "rollout_timeout",
                                          "rollout_url",
                                          "rollout_server",
                                          "rollout_model",
                                          "rollout_api_key_env",
                                          "rollout_concurrency",
                                          "rollout_update",
                                          "rollout_update_command",
                                          "rollout_update_steps",
                                          "async_steps",
                                          "rewards",
                                          "reward_weights",
                                          "reward_command",
                                          "reward_format",
                                          "reward_url",
                                          "reward_timeout",
                                          "environment_command",
                                          "max_turns",
                                          "rollout_temperature",
                                          "max_staleness"},
                           kUpdates[] = {"num_generations",
                                         "num_iterations",
                                         "epsilon",
                                         "epsilon_high",
                                         "max_completion_length",
                                         "mask_truncated_completions",
                                         "importance_sampling_correction",
                                         "importance_sampling_clip_max",
                                         "importance_sampling_clip_min"};

}  // namespace

extern const StageKeys kTrainedKeys{.keys = kTrained};
extern const StageKeys kNoiseKeys{.keys = kNoise};
extern const StageKeys kPackingKeys{.keys = kPacking};
extern const StageKeys kNeatKeys{.keys = kNeat};
extern const StageKeys kPreferenceKeys{.keys = kPreference};
extern const StageKeys kReferenceKeys{.keys = kReference};
extern const StageKeys kPrecomputedKeys{.keys = kPrecomputed};
extern const StageKeys kSharedPromptKeys{.keys = kSharedPrompt, .use = "pairs of answers"};
extern const StageKeys kRolloutKeys{.keys = kRollouts, .use = "rollouts"};
extern const StageKeys kUpdateKeys{.keys = kUpdates, .use = "rollouts"};

std::vector<std::string> no_problems(const PreferenceSettings&, const MethodSettings&) {
  return {};
}

std::string numbered_document(const Example& example, size_t i) {
  return fmt::format("document {} of {}", i + 1, example.documents.size());
}

std::string chosen_or_rejected(const Example&, size_t i) { return i == 0 ? "chosen" : "rejected"; }

bool no_reference(const PreferenceSettings&) { return false; }

std::string preference_summary(std::string name, const PreferenceSettings& config) {
  std::string text = std::move(name) + fmt::format(", pref_beta {}", config.pref_beta);
  if (config.pref_ftx > 0) text += fmt::format(", pref_ftx {}", config.pref_ftx);
  return text;
}

}  // namespace longspan
