// Keys: steps, the optimizer and evaluation.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
#include "longspan/config/register_choices.h"
#include "longspan/registers/schedule.h"

namespace longspan::key_tables {

KeySection optimization_keys() {
  using S = OptimizationSettings;
  using enum OnResume;
  Key num_train_epochs = number("num_train_epochs", &S::num_train_epochs, kNamed, 0,
                                "Passes over the data.", kMostEpochs);
  num_train_epochs.above_least = true;
  Key warmup_ratio =
      noted(number("warmup_ratio", &S::warmup_ratio, kNamed, 0,
                   "Share of the steps in which the learning rate rises from 0."),
            "transformers 5.23 has it no longer: warmup_steps below 1 is the same, here too.");
  warmup_ratio.most = 1;
  static const std::string optimizer_help = help_of_optimizers();
  Key beta1 = number("adam_beta1", &S::adam_beta1, kNamed, 0, "AdamW's first decay.");
  Key beta2 = number("adam_beta2", &S::adam_beta2, kNamed, 0, "AdamW's second decay.");
  beta1.most = beta2.most = 1;
  beta1.below_most = beta2.below_most = true;
  return {
      "Training",
      {noted(number("per_device_train_batch_size", &S::per_device_train_batch_size, kNamed, 1,
                    "Rows of a micro-batch of one process; under sequence parallelism, of one "
                    "group of processes.",
                    kMostRows),
             "The rows of one process there; here of a group of sequence_parallel_size processes."),
       number("gradient_accumulation_steps", &S::gradient_accumulation_steps, kNamed, 1,
              "Micro-batches of an optimizer step.", kMostRows),
       noted(number("global_batch_size", &S::global_batch_size, kFree, 1,
                    "Rows of an optimizer step, of all processes; gradient_accumulation_steps "
                    "follows from it.",
                    kMostRows),
             "Only its v1 has this key."),
       number("learning_rate", &S::learning_rate, kNamed, 0, "The optimizer's learning rate."),
       num_train_epochs,
       {.name = "max_steps",
        .field = &S::max_steps,
        .on_resume = kNamed,
        .help = "Stop after so many optimizer steps; -1: num_train_epochs decides.",
        .least = -1,
        .most = kMostSteps,
        .not_zero = true},
       choice("lr_scheduler_type", &S::lr_scheduler_type, kNamed, names_of_schedules(),
              "How the learning rate falls after the warmup.",
              {"cosine_with_restarts", "polynomial", "inverse_sqrt", "reduce_lr_on_plateau",
               "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"}),
       warmup_ratio,
       steps("warmup_steps", &S::warmup_steps, kNamed,
             "Optimizer steps in which the learning rate rises from 0.", /*none_allowed=*/true),
       number("max_grad_norm", &S::max_grad_norm, kNamed, 0,
              "Clip the global gradient norm; 0: never."),
       noted(number("neftune_noise_alpha", &S::neftune_noise_alpha, kNamed, 0,
                    "NEFTune: in training, add uniform noise to the embedding, within this number "
                    "/ sqrt(tokens of the row x hidden size)."),
             "The tokens include padding there."),
       number("weight_decay", &S::weight_decay, kNamed, 0,
              "Weight decay of matrices; each step multiplies it by the learning rate."),
       beta1,
       beta2,
       number("adam_epsilon", &S::adam_epsilon, kNamed, 0, "AdamW's epsilon."),
       choice(
           "optim", &S::optim, kNamed, names_of_optimizers(), optimizer_help,
           {"adamw_hf", "adafactor", "sgd", "lion_8bit", "paged_adamw_8bit", "paged_adamw_32bit"}),
       plain("use_muon", &S::use_muon, kFree, "The same as optim: muon_match_rms_adamw."),
       noted(number("moe_aux_loss_coef", &S::moe_aux_loss_coef, kNamed, 0,
                    "Weight of the auxiliary loss that balances the load of experts. Left out: as "
                    "the model's config.json says; 0: no auxiliary loss."),
             "The loss is of each micro-batch there, and their sum; here it is of the whole global "
             "batch. 0 is the same as left out there."),
       noted(choice("on_nonfinite", &S::on_nonfinite, kNamed, {"stop", "skip"},
                    "When the loss or a gradient is NaN or infinite: stop, or skip the step."),
             kOwn),
       plain("bf16", &S::bf16, kNamed, "Compute in bfloat16, keep the weights in fp32."),
       number("seed", &S::seed, kRefused, 0,
              "Seed of the order of rows and of the evaluation split."),
       noted(
           number("data_seed", &S::data_seed, kFree, 0, "Must equal seed, which orders the rows."),
           "It may differ from seed there."),
       number("ddp_timeout", &ParallelSettings::ddp_timeout, kFree, 1,
              "Seconds to wait for another process; reading and writing models is not counted.",
              kMostSeconds),
       choice("eval_strategy", &S::eval_strategy, kFree, {"no", "steps", "epoch"},
              "When to evaluate."),
       steps("eval_steps", &S::eval_steps, kFree,
             "Optimizer steps between evaluations; left out: logging_steps."),
       plain(
           "compute_accuracy", &PreferenceSettings::compute_accuracy, kFree,
           "Evaluations compute eval_accuracy: the mean over rows of the share of labels that are "
           "the most probable token."),
       number("per_device_eval_batch_size", &S::per_device_eval_batch_size, kFree, 1,
              "Rows of an evaluation micro-batch.", kMostRows)}};
}

}  // namespace longspan::key_tables
