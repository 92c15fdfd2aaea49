// Keys: training on rollouts. Keys that TRL's GRPOConfig also has are named as in GRPOConfig.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
#include "longspan/registers/policy_loss.h"
#include "longspan/registers/rollout_server.h"

namespace longspan::key_tables {
namespace {

constexpr double kMostConcurrency = 1024;
constexpr std::string_view kOfRollouts = "It has no training on rollouts and no distillation.";

template <size_t N>
std::vector<std::string_view> words(const std::string_view (&names)[N]) {
  return {std::begin(names), std::end(names)};
}

Key listed(Key key) {
  key.list = true;
  return key;
}

}  // namespace

KeySection policy_keys() {
  using S = PolicySettings;
  using enum OnResume;
  Key delta = number("delta", &S::delta, kNamed, 0,
                     "Upper bound of the ratio where the advantage is negative (two-sided "
                     "clipping). Left out: none.");
  delta.above_least = true;
  Key temperature = number("rollout_temperature", &S::rollout_temperature, kNamed, 0,
                           "Temperature of the sampler. Training divides the logits by the same "
                           "temperature before it computes log-probabilities.");
  temperature.above_least = true;
  Key quantile = number("top_entropy_quantile", &S::top_entropy_quantile, kNamed, 0,
                        "Share of the tokens, those with the highest entropy, that have a loss.",
                        /*most=*/1);
  quantile.above_least = true;
  Key distill_temperature =
      number("distill_temperature", &S::distill_temperature, kNamed, 0,
             "Divides the logits of teacher and policy before they are compared.");
  distill_temperature.above_least = true;
  KeySection section{
      "Reinforcement learning and distillation",
      {choice("rollout", &S::rollout, kNamed, {"file", "self", "server"},
              "Source of rollouts. file: the file that the key rollouts names. self: answers of "
              "the model in training to the questions of dataset. server: answers of the server "
              "at rollout_url to these questions."),
       plain("rollouts", &S::rollouts, kFree,
             "File of rollouts: JSON lines with token_ids, mask, logprobs, reward and group."),
       number("rollout_timeout", &S::rollout_timeout, kFree, 0,
              "Seconds to wait for more rollouts in the file, or for the server. 0: do not wait.",
              kMostSeconds),
       plain("rollout_url", &S::rollout_url, kFree, "Address of the server: http://HOST:PORT."),
       choice("rollout_server", &S::rollout_server, kNamed, names_of_server_kinds(),
              "Program that serves at rollout_url."),
       plain("rollout_model", &S::rollout_model, kFree,
             "Name of the model on the server. Left out: model_name_or_path."),
       plain("rollout_api_key_env", &S::rollout_api_key_env, kFree,
             "Name of an environment variable of rank 0. Its value is the server's API key, which "
             "each request has (Authorization: Bearer). Left out: none."),
       number("rollout_concurrency", &S::rollout_concurrency, kFree, 1,
              "Requests to the server at a time.", kMostConcurrency),
       choice("rollout_update", &S::rollout_update, kNamed, names_of_update_ways(),
              "How the server gets new weights. none: never. disk: the server loads the saved "
              "model. lora: the server loads the saved adapter. command: rollout_update_command "
              "updates the server."),
       plain("rollout_update_command", &S::rollout_update_command, kFree,
             "Command of rollout_update: command. LONGSPAN_PATH is the folder of the model or "
             "adapter, LONGSPAN_VERSION the number of its updates."),
       number("rollout_update_steps", &S::rollout_update_steps, kNamed, 1,
              "Number of rollout batches between updates of the server.", kMostSteps),
       number("async_steps", &S::async_steps, kNamed, 0,
              "Batches of rollouts that the server samples ahead, while the model trains.",
              kMostRows),
       listed(plain("rewards", &S::rewards, kNamed,
                    "Reward functions, as a list: exact_match, number, length, command, format, "
                    "http, environment.")),
       listed(plain("reward_weights", &S::reward_weights, kNamed,
                    "A weight for each reward function. Left out: 1.")),
       plain("reward_command", &S::reward_command, kNamed,
             "Command of the reward function command: JSON lines in, JSON lines out."),
       plain("reward_format", &S::reward_format, kNamed,
             "Regular expression of the reward function format, which must match the whole "
             "answer."),
       plain("reward_url", &S::reward_url, kNamed,
             "Address of the reward function http: a JSON list of answers in, a JSON list of "
             "numbers out."),
       number("reward_timeout", &S::reward_timeout, kFree, 1,
              "Seconds that reward_command or reward_url may take for a batch, and "
              "environment_command for a turn.",
              kMostSeconds),
       plain("environment_command", &S::environment_command, kNamed,
             "Command that replies to answers, by a further message or a reward: JSON lines in, "
             "JSON lines out."),
       number("max_turns", &S::max_turns, kNamed, 1,
              "Most answers of a conversation with environment_command.", kMostRows),
       choice("loss_type", &S::loss_type, kNamed, names_of_policy_losses(),
              "Loss of the tokens of rollouts. The denominator of the loss covers the whole "
              "global batch."),
       choice("advantage_estimator", &S::advantage_estimator, kNamed,
              names_of_advantage_estimators(),
              "How rewards become advantages. Left out: by loss_type."),
       choice("scale_rewards", &S::scale_rewards, kNamed, words(kRewardScaleNames),
              "grpo: the standard deviation that divides advantages."),
       number("num_generations", &S::num_generations, kNamed, 1, "Rollouts of a group.", kMostRows),
       number("num_iterations", &S::num_iterations, kRefused, 1, "Updates on the same rollouts.",
              kMostRows),
       choice("importance_sampling_level", &S::importance_sampling_level, kNamed,
              {"token", "sequence"},
              "Ratio of each token, or of a whole rollout (GSPO). Left out: by loss_type."),
       number("epsilon", &S::epsilon, kNamed, 0, "Lower clip of the ratio: 1 - epsilon."),
       number("epsilon_high", &S::epsilon_high, kNamed, 0,
              "Upper clip: 1 + epsilon_high; cispo: the clip itself. Left out: epsilon."),
       delta,
       number("beta", &S::beta, kNamed, 0,
              "Weight of KL to the reference model. 0: no reference model."),
       choice("kl_estimator", &S::kl_estimator, kNamed, words(kKlEstimatorNames),
              "Estimator of KL from one token. Left out: by loss_type."),
       plain("kl_in_reward", &S::kl_in_reward, kNamed,
             "Subtract KL from the reward, not from the loss. Left out: by loss_type."),
       plain("use_bias_correction_kl", &S::use_bias_correction_kl, kNamed,
             "Multiply KL in the loss by the ratio."),
       temperature,
       quantile,
       number("max_completion_length", &S::max_completion_length, kNamed, 1,
              "Most tokens of an answer of rollout: self or server; dr_grpo: the denominator of a "
              "rollout.",
              kMostTokens),
       plain("mask_truncated_completions", &S::mask_truncated_completions, kNamed,
             "Leave out rollouts that ended by their length limit."),
       choice("importance_sampling_correction", &S::importance_sampling_correction, kNamed,
              words(kCorrectionNames),
              "Multiply the loss by a correction factor: the policy's probability of a token or a"
              " rollout, divided by the sampler's. Used if rollouts have the sampler's "
              "log-probabilities."),
       number("importance_sampling_clip_max", &S::importance_sampling_clip_max, kNamed, 0,
              "Upper limit of the factor of importance_sampling_correction. truncate: a larger "
              "factor is set to the limit. mask: a token or rollout with a larger factor has no "
              "loss."),
       number("importance_sampling_clip_min", &S::importance_sampling_clip_min, kNamed, 0,
              "Lower limit of the factor, in the same way. Left out: no limit."),
       number("max_staleness", &S::max_staleness, kNamed, 0,
              "Maximum age of a rollout: the number of updates of the policy since the rollout "
              "was sampled. Older rollouts are not trained. Left out: no limit.",
              kMostSteps)}};
  section.keys.insert(
      section.keys.end(),
      {number("distill_beta", &S::distill_beta, kNamed, 0,
              "Divergence from the teacher. 0: KL(teacher || policy), the forward KL. 1: KL(policy "
              "|| teacher), the reverse KL. Between: the generalized Jensen-Shannon divergence.",
              /*most=*/1),
       distill_temperature,
       number("distill_top_k", &S::distill_top_k, kNamed, 1,
              "Compare the k most probable tokens one by one, and the sum of all other tokens. "
              "Left out: the whole vocabulary.",
              kMostTokens)});
  for (Key& key : section.keys) key.differs = kOfRollouts;
  return section;
}

}  // namespace longspan::key_tables
