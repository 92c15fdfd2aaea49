// Training on rollouts, and distillation (stages grpo, distill, distill_sft). No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

/// Names and defaults equal those of TRL's GRPOConfig, for the settings that GRPOConfig has.
struct PolicySettings {
  std::string rollout = "file";   // file | self | server
  std::string rollouts;           // rollout: file: JSON lines
  int64_t rollout_timeout = 600;  // seconds without new rollouts
  // rollout: server
  std::string rollout_url;                    // http://HOST:PORT
  std::string rollout_server = "vllm";        // registers/rollout_server.h
  std::string rollout_model;                  // name on the server; empty: model_name_or_path
  std::string rollout_api_key_env;            // name of an environment variable; empty: no key
  int64_t rollout_concurrency = 8;            // requests at a time
  std::optional<std::string> rollout_update;  // registers/rollout_server.h
  std::string rollout_update_command;
  int64_t rollout_update_steps = 1;  // batches between updates of the server
  int64_t async_steps = 0;           // batches that are sampled ahead
  std::string rewards;               // names of reward functions
  std::string reward_weights;        // a number for each; empty: 1
  std::string reward_command, reward_format, reward_url;
  int64_t reward_timeout = 60;  // seconds
  std::string environment_command;
  int64_t max_turns = 8;  // answers of a conversation with an environment
  std::string loss_type = "dapo";
  std::optional<std::string> advantage_estimator;        // default: by loss_type
  std::string scale_rewards = "group";                   // group | batch | none
  int64_t num_generations = 8;                           // rollouts of a group
  int64_t num_iterations = 1;                            // updates on the same rollouts
  std::optional<std::string> importance_sampling_level;  // token | sequence; default: by loss_type
  double epsilon = 0.2;
  std::optional<double> epsilon_high, delta;
  double beta = 0.0;                        // weight of KL to the reference; 0: no reference
  std::optional<std::string> kl_estimator;  // k1 | k2 | k3; default: by loss_type
  std::optional<bool> kl_in_reward;         // default: by loss_type
  bool use_bias_correction_kl = true;
  double rollout_temperature =
      1.0;  // of the sampler; log-probabilities are of logits / temperature
  double top_entropy_quantile = 1.0;
  int64_t max_completion_length = 512;  // the denominator of dr_grpo
  bool mask_truncated_completions = false;
  /// none | token_truncate | token_mask | sequence_truncate | sequence_mask
  std::string importance_sampling_correction = "sequence_mask";
  double importance_sampling_clip_max = 3.0;
  std::optional<double> importance_sampling_clip_min;
  std::optional<int64_t> max_staleness;  // in updates; nullopt: any
  // Stages distill and distill_sft with a teacher model (kernels/linear_divergence.h)
  double distill_beta = 0.5;
  double distill_temperature = 1.0;
  std::optional<int64_t> distill_top_k;  // nullopt: the whole vocabulary
};

}  // namespace longspan
