// Keys: preferences.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
#include "longspan/registers/pair_loss.h"

namespace longspan::key_tables {

KeySection preference_keys() {
  using S = PreferenceSettings;
  using enum OnResume;
  Key label_smoothing = number("dpo_label_smoothing", &S::dpo_label_smoothing, kNamed, 0,
                               "sigmoid: assumed share of pairs whose answers are swapped.");
  label_smoothing.most = 0.5;
  Key value_head_dropout =
      noted(number("value_head_dropout", &S::value_head_dropout, kNamed, 0,
                   "rm: probability of dropout on the input of the value head, in training. TRL "
                   "and LLaMA-Factory always use 0.1. With 0, the logged loss equals the loss of "
                   "the saved model."),
            "It has no such key; the dropout is 0.1.");
  value_head_dropout.most = 1;
  value_head_dropout.below_most = true;
  Key pref_beta = number("pref_beta", &S::pref_beta, kNamed, 0, "Strength of the preference.");
  pref_beta.above_least = true;
  return {
      "Preferences",
      {pref_beta,
       choice("pref_loss", &S::pref_loss, kNamed, names_of_pair_losses(),
              "Loss of a pair of answers."),
       number("pref_ftx", &S::pref_ftx, kNamed, 0, "Weight of the chosen answer's own SFT loss."),
       label_smoothing,
       number("simpo_gamma", &S::simpo_gamma, kNamed, 0, "simpo: margin between the answers."),
       number("kto_chosen_weight", &S::kto_chosen_weight, kNamed, 0,
              "kto: weight of good answers."),
       number("kto_rejected_weight", &S::kto_rejected_weight, kNamed, 0,
              "kto: weight of bad answers."),
       plain(
           "ref_model", &S::ref_model, kFree,
           "The reference model's folder; the teacher in distill and distill_sft. Left out in "
           "other "
           "stages: under lora the model without the trained adapter, else a copy of the model at "
           "the start."),
       plain("ref_model_adapters", &S::ref_model_adapters, kFree,
             "LoRA adapter folders of the reference model, with commas between."),
       noted(
           plain(
               "precompute_ref_log_probs", &S::precompute_ref_log_probs, kFree,
               "Compute the reference's log-probabilities once, keep them in output_dir, and free "
               "the reference model."),
           kOwn),
       noted(plain("pref_share_prompt", &S::pref_share_prompt, kFree,
                   "Compute the prompt of a pair once for both answers: same loss, less work."),
             kOwn),
       value_head_dropout}};
}

}  // namespace longspan::key_tables
