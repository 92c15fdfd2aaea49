// Losses of tokens, preferences and rollouts, and the reference model. No torch.
#pragma once

#include <string>

#include "longspan/settings/policy_settings.h"

namespace longspan {

struct PreferenceSettings {
  // stage sft
  bool use_dft_loss = false, use_asft_loss = false, use_eaft_loss = false;
  bool compute_accuracy = false;
  double asft_alpha = 0.1, eaft_alpha = 1.0;
  double pref_beta = 0.1;
  std::string pref_loss = "sigmoid";  // sigmoid | hinge | ipo | kto_pair | orpo | simpo
  double pref_ftx = 0.0, dpo_label_smoothing = 0.0, simpo_gamma = 0.5;
  double kto_chosen_weight = 1.0, kto_rejected_weight = 1.0;
  std::string ref_model, ref_model_adapters;
  bool precompute_ref_log_probs = false;
  bool pref_share_prompt = false;
  double value_head_dropout = 0.0;  // stage rm
  PolicySettings policy;            // rollouts and distillation
};

}  // namespace longspan
