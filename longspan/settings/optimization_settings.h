// Batches, steps and the optimizer. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

struct OptimizationSettings {
  int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  std::optional<int64_t> global_batch_size;  // not set: as gradient_accumulation_steps says
  double learning_rate = 5e-5, num_train_epochs = 3.0, max_grad_norm = 1.0;
  double neftune_noise_alpha = 0.0;  // stages pt and sft
  int64_t max_steps = -1;
  std::string lr_scheduler_type = "linear";
  std::optional<double> loraplus_lr_ratio;  // finetuning_type lora; not set: 1
  double warmup_ratio = 0.0;
  double warmup_steps = 0;
  double weight_decay = 0.0, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  std::string optim = "adamw_torch";        // a name of the register (registers/update_rule.h)
  bool use_muon = false;                    // optim: muon_match_rms_adamw
  std::string on_nonfinite = "stop";        // stop | skip
  std::optional<double> moe_aux_loss_coef;  // not set: the value of config.json
  bool bf16 = false;
  int64_t seed = 42;
  std::optional<int64_t> data_seed;  // same value as seed
  std::string eval_strategy = "no";  // no | steps | epoch
  std::optional<double> eval_steps;
};

}  // namespace longspan
