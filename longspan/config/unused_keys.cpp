#include "longspan/config/unused_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "longspan/config/config.h"
#include "longspan/config/keys.h"
#include "longspan/registers/policy_loss.h"
#include "longspan/registers/rollout_server.h"
#include "longspan/registers/stage.h"
#include "longspan/text/shown.h"

namespace longspan {

struct UnusedKeyFacts {
  const PolicySettings& policy;
  PolicyLoss loss;
  bool has_rewards;        // stage grpo; otherwise stage distill
  bool has_teacher_model;  // stage distill with ref_model

  bool from(std::string_view source) const { return policy.rollout == source; }
  bool updates_by(std::string_view way) const {
    return from("server") && policy.rollout_update == way;
  }
};

namespace {

constexpr size_t kShownBytes = 80;  // of a value

using Facts = UnusedKeyFacts;

bool needs_no_model_name(const Facts& facts) {
  return facts.from("server") && server_kind_named(facts.policy.rollout_server).model.empty();
}

bool names_the_adapter(const Facts& facts) {
  const ServerKind& kind = server_kind_named(facts.policy.rollout_server);
  return facts.updates_by("lora") && kind.adapter == kind.model;
}

bool names_the_folder(const Facts& facts) {
  return facts.updates_by("disk") && server_kind_named(facts.policy.rollout_server).loads_beside;
}

/// The only update on a rollout has the ratio 1. A bound of the ratio itself may be below 1.
bool has_ratio_1(const Facts& facts) {
  return facts.policy.num_iterations == 1 && facts.loss.kind.use != RatioUse::kWeight;
}

}  // namespace

const std::vector<UnusedKeys>& unused_keys() {
  static const std::vector<UnusedKeys> table = {
      // The source of rollouts
      {.keys = {"rollouts"},
       .are_unused = [](const Facts& facts) { return !facts.from("file"); },
       .where = "without rollout: file",
       .of_source = true},
      {.keys = {"rollout_url", "rollout_server", "rollout_model", "rollout_api_key_env",
                "rollout_concurrency", "rollout_update", "rollout_update_command",
                "rollout_update_steps"},
       .are_unused = [](const Facts& facts) { return !facts.from("server"); },
       .where = "without rollout: server",
       .remedy = "set rollout: server",
       .of_source = true},
      {.keys = {"async_steps"},
       .are_unused = [](const Facts& facts) { return !facts.from("server"); },
       .where = "without rollout: server, because only a server samples during the training",
       .of_source = true},
      {.keys = {"rollout_timeout", "max_staleness"},
       .are_unused = [](const Facts& facts) { return facts.from("self"); },
       .where = "with rollout: self, because the model answers at once and with its latest weights",
       .of_source = true},
      {.keys = {"rollout_model"},
       .are_unused = needs_no_model_name,
       .where = "with a rollout_server whose requests name no model (sglang)",
       .of_source = true},
      {.keys = {"rollout_model"},
       .are_unused = names_the_adapter,
       .where = "with rollout_update: lora, because each request names an adapter of the run",
       .of_source = true},
      {.keys = {"rollout_model"},
       .are_unused = names_the_folder,
       .where = "with rollout_update: disk and a rollout_server that holds several models "
                "(transformers), because each request names a folder of the run",
       .of_source = true},
      {.keys = {"rollout_update_command"},
       .are_unused =
           [](const Facts& facts) {
             return facts.policy.rollout_update && !facts.updates_by("command");
           },
       .where = "without rollout_update: command",
       .of_source = true},
      {.keys = {"rollout_update_steps"},
       .are_unused = [](const Facts& facts) { return facts.updates_by("none"); },
       .where = "with rollout_update: none",
       .of_source = true},
      {.keys = {"max_completion_length"},
       .are_unused =
           [](const Facts& facts) {
             return facts.from("file") && facts.loss.kind.mean != PolicyMean::kOfFixedLength;
           },
       .where = "with rollout: file, except as the denominator of loss_type: dr_grpo",
       .of_source = true},
      {.keys = {"rollout_temperature"},
       .are_unused =
           [](const Facts& facts) { return facts.from("file") && facts.has_teacher_model; },
       .where = "with rollout: file and ref_model in stage: distill, because distill_temperature "
                "divides the logits there",
       .of_source = true},

      // Rewards and environments
      {.keys = {"rewards", "reward_weights", "reward_command", "reward_format", "reward_url"},
       .are_unused = [](const Facts& facts) { return !facts.has_rewards; },
       .where = "in stage: distill, which uses no rewards"},
      {.keys = {"rewards", "reward_weights", "reward_command", "reward_format", "reward_url",
                "reward_timeout", "environment_command"},
       .are_unused = [](const Facts& facts) { return facts.from("file"); },
       .where = "with rollout: file, because the rollouts of a file are complete and have their "
                "rewards",
       .of_source = true},
      {.keys = {"reward_timeout"},
       .are_unused =
           [](const Facts& facts) {
             return facts.policy.reward_command.empty() && facts.policy.reward_url.empty() &&
                    facts.policy.environment_command.empty();
           },
       .where = "without reward_command, reward_url and environment_command",
       .of_source = true},
      {.keys = {"max_turns"},
       .are_unused = [](const Facts& facts) { return facts.policy.environment_command.empty(); },
       .where = "without environment_command",
       .of_source = true},

      // The loss
      {.keys = {"epsilon", "epsilon_high", "importance_sampling_correction",
                "importance_sampling_clip_max", "importance_sampling_clip_min"},
       .are_unused = [](const Facts& facts) { return facts.has_teacher_model; },
       .where =
           "with ref_model in stage: distill, because only teacher_logprobs of rollouts make a "
           "loss with a ratio"},
      {.keys = {"distill_beta", "distill_temperature", "distill_top_k"},
       .are_unused =
           [](const Facts& facts) { return !facts.has_rewards && !facts.has_teacher_model; },
       .where = "without ref_model, because only a teacher model gives whole distributions to "
                "compare",
       .remedy = "give ref_model"},
      {.keys = {"epsilon"},
       .are_unused = [](const Facts& facts) { return facts.loss.kind.use == RatioUse::kWeight; },
       .where = "with loss_type: cispo, whose only bound of the ratio is epsilon_high"},
      {.keys = {"delta"},
       .are_unused = [](const Facts& facts) { return facts.loss.kind.use != RatioUse::kClipped; },
       .where = "with a loss_type that weights by the ratio (cispo, cispo_range)"},
      {.keys = {"epsilon", "epsilon_high", "delta"},
       .are_unused = has_ratio_1,
       .where = "with num_iterations: 1, because the ratio is 1 in the only update on a rollout",
       .remedy = "raise num_iterations"},
      {.keys = {"importance_sampling_level"},
       .are_unused = [](const Facts& facts) { return facts.loss.kind.mean == PolicyMean::kOfSums; },
       .where = "with loss_type: rloo, which has one ratio for a whole rollout"},
      {.keys = {"scale_rewards"},
       .are_unused =
           [](const Facts& facts) {
             return facts.loss.advantages.scale != AdvantageScale::kChosen;
           },
       .where = "without advantage_estimator: grpo (dapo and most losses have it by default)"},
      {.keys = {"importance_sampling_clip_max", "importance_sampling_clip_min"},
       .are_unused = [](const Facts& facts) { return !facts.loss.correction.corrects; },
       .where = "with importance_sampling_correction: none"},
      {.keys = {"ref_model", "ref_model_adapters", "kl_estimator", "kl_in_reward",
                "use_bias_correction_kl"},
       .are_unused = [](const Facts& facts) { return facts.has_rewards && facts.policy.beta == 0; },
       .where = "with beta: 0, the weight of KL to the reference model",
       .remedy = "give beta"},
      {.keys = {"use_bias_correction_kl"},
       .are_unused = [](const Facts& facts) { return facts.loss.kl_in_reward; },
       .where = "with KL in the reward (kl_in_reward), because the correction is for KL in the "
                "loss"},
  };
  return table;
}

std::vector<std::string> problems_of_unused_keys(const Config& config, bool has_source) {
  const Stage& stage = stage_of(config.method);
  if (stage.rollouts == RolloutUse::kNone) return {};
  const PolicySettings& policy = config.preferences.policy;
  const bool has_rewards = stage.rollouts == RolloutUse::kRewards;
  const Facts facts{.policy = policy,
                    .loss = policy_loss_of(policy),
                    .has_rewards = has_rewards,
                    .has_teacher_model = !has_rewards && stage.has_reference(config.preferences)};
  const Config defaults;
  std::vector<std::string> problems;
  for (const KeySection& section : key_sections()) {
    for (const Key& key : section.keys) {
      const std::string value = value_of(key, config);
      if (!is_for_stage(key.name, stage) || value == value_of(key, defaults)) continue;
      const auto found = std::ranges::find_if(unused_keys(), [&](const UnusedKeys& unused) {
        return std::ranges::find(unused.keys, key.name) != unused.keys.end() &&
               (has_source || !unused.of_source) && unused.are_unused(facts);
      });
      if (found == unused_keys().end()) continue;
      problems.push_back(fmt::format("{}: {} has no effect {}; remove the key{}{}", key.name,
                                     shortened(value, kShownBytes), found->where,
                                     found->remedy.empty() ? "" : ", or ", found->remedy));
    }
  }
  return problems;
}

}  // namespace longspan
