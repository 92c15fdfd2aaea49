// Keys: the trained part of the model, and the kind of rows.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
#include "longspan/config/register_choices.h"

namespace longspan::key_tables {

KeySection method_keys() {
  using S = MethodSettings;
  using enum OnResume;
  using enum FinetuningType;
  Key lora_dropout = number("lora_dropout", &S::lora_dropout, kNamed, 0,
                            "Dropout of the input of LoRA's matrices.");
  lora_dropout.most = 1;
  lora_dropout.below_most = true;
  Key lora_target = plain("lora_target", &S::lora_target, kRefused,
                          "Modules with LoRA matrices, with commas between (q_proj,v_proj); all: "
                          "every linear layer but the head.");
  Key freeze_modules = plain("freeze_trainable_modules", &S::freeze_trainable_modules, kNamed,
                             "freeze: trained modules of the trained layers (mlp, self_attn), with "
                             "commas between; all: whole layers.");
  Key freeze_extra =
      plain("freeze_extra_modules", &S::freeze_extra_modules, kNamed,
            "freeze: trained modules outside of the layers (embed_tokens, norm, lm_head).");
  Key additional_target =
      plain("additional_target", &S::additional_target, kRefused,
            "Modules that LoRA trains and saves whole beside its matrices, with commas between: "
            "ends of names of the embedding, the head and norms (embed_tokens,lm_head,norm).");
  additional_target.list = lora_target.list = freeze_modules.list = freeze_extra.list = true;
  Key loraplus = number("loraplus_lr_ratio", &OptimizationSettings::loraplus_lr_ratio, kNamed, 0,
                        "LoRA+: learning_rate times this number for the second matrix of each "
                        "adapter. Left out: 1.");
  loraplus.above_least = true;
  static const std::string stage_help = help_of_stages();
  return {
      "Method",
      {choice("stage", &S::stage, kRefused, names_of_stages(), stage_help, {"ppo"}),
       plain("do_train", &S::do_train, kFree,
             "Train. false: only answer the rows of evaluation (predict_with_generate)."),
       plain("do_eval", &S::do_eval, kFree, "Evaluate once after training."),
       noted(choice("finetuning_type", &S::finetuning_type, kRefused, {"full", "freeze", "lora"},
                    "full: all parameters. freeze: some layers. lora: low-rank matrices beside the "
                    "linear layers. (LLaMA-Factory's own default is lora.)",
                    {"oft"}),
             "The default there is lora."),
       plain("disable_shuffling", &S::disable_shuffling, kRefused,
             "Take the rows in the order of the files."),
       noted(choice("train_sampling_strategy", &S::train_sampling_strategy, kFree,
                    {"random", "sequential"}, "sequential: the same as disable_shuffling: true."),
             "It is transformers' key; group_by_length is not here."),
       noted(plain("use_dft_loss", &PreferenceSettings::use_dft_loss, kNamed,
                   "DFT: multiply each token's loss by the token's probability, in training and "
                   "evaluation."),
             "moe_aux_loss_coef has no effect with it there."),
       noted(plain("use_asft_loss", &PreferenceSettings::use_asft_loss, kNamed,
                   "ASFT: the loss of use_dft_loss, plus asft_alpha KL(reference || model) of each "
                   "token, in training and evaluation. The reference is ref_model, or the model "
                   "before training."),
             "Each micro-batch has a mean of its own there, and finetuning_type: lora needs "
             "ref_model."),
       number("asft_alpha", &PreferenceSettings::asft_alpha, kNamed, 0,
              "Weight of the KL in use_asft_loss."),
       noted(
           plain("use_eaft_loss", &PreferenceSettings::use_eaft_loss, kNamed,
                 "EAFT: multiply each token's loss by (the entropy of the 20 most probable tokens "
                 "/ 3)^eaft_alpha, in training and evaluation."),
           "moe_aux_loss_coef has no effect with it there."),
       number("eaft_alpha", &PreferenceSettings::eaft_alpha, kNamed, 0,
              "Exponent of use_eaft_loss."),
       only_for(kLora, number("lora_rank", &S::lora_rank, kRefused, 1,
                              "Inner dimension of the LoRA matrices.", kMostTokens)),
       only_for(kLora,
                number("lora_alpha", &S::lora_alpha, kNamed, 1,
                       "LoRA's scale is alpha / rank; left out: twice the rank.", kMostTokens)),
       only_for(kLora, lora_dropout),
       only_for(kLora, lora_target),
       only_for(kLora, additional_target),
       noted(plain("resize_vocab", &S::resize_vocab, kRefused,
                   "Add rows to the embedding and the head where the tokenizer has more tokens, up "
                   "to a multiple of 64: the mean of the other rows, plus normal noise. LoRA then "
                   "trains both whole, unless additional_target is given."),
             "add_tokens and add_special_tokens set it there."),
       only_for(kLora,
                plain("use_rslora", &S::use_rslora, kNamed, "LoRA's scale is alpha / sqrt(rank).")),
       only_for(kLora, plain("use_dora", &S::use_dora, kRefused,
                             "DoRA: also train the length of each row of an adapted weight, and "
                             "let LoRA's matrices change the row's direction. Not for pure_bf16.")),
       only_for(kLora, loraplus),
       only_for(kLora, plain("pissa_init", &S::pissa_init, kRefused,
                             "PiSSA: the adapter begins as the part of each weight with the "
                             "largest singular values, and the weight keeps the rest.")),
       only_for(kLora, number("pissa_iter", &S::pissa_iter, kRefused, -1,
                              "Iterations of PiSSA's randomized decomposition; -1: an exact one.",
                              kMostSteps)),
       only_for(kLora, plain("pissa_convert", &S::pissa_convert, kFree,
                             "PiSSA: also save a plain adapter of twice the rank for the whole "
                             "model, in output_dir/pissa_converted.")),
       only_for(kFreeze, plain("freeze_trainable_layers", &S::freeze_trainable_layers, kNamed,
                               "freeze: number of trained layers, from the last; negative: from "
                               "the first.")),
       only_for(kFreeze, freeze_modules),
       only_for(kFreeze, freeze_extra),
       plain("freeze_vision_tower", &S::freeze_vision_tower, kRefused,
             "Models that take pictures: do not train the tower that turns patches into features."),
       plain("freeze_multi_modal_projector", &S::freeze_multi_modal_projector, kRefused,
             "Models that take pictures: do not train the projector from features to the language "
             "model."),
       plain("freeze_language_model", &S::freeze_language_model, kRefused,
             "Models that take pictures: do not train the language model.")}};
}

}  // namespace longspan::key_tables
