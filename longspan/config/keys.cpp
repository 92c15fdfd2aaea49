#include "longspan/config/keys.h"

#include <fmt/format.h>

#include "longspan/config/config.h"
#include "longspan/config/logging_services.h"
#include "longspan/config/words_of_registers.h"
#include "longspan/objectives/pair_loss.h"
#include "longspan/plan/method.h"
#include "longspan/stages/stage.h"

namespace longspan {

namespace {

// What is counted stays small enough that products of it, rows of a step and tokens of a
// micro-batch, can be counted too, and that nothing is made of a mistyped number alone.
constexpr double kMostTokens = INT32_MAX;  // of a row
constexpr double kMostRows = 1e6;          // of a micro-batch, micro-batches of a step
constexpr double kMostSteps = 1e15;
constexpr double kMostEpochs = 1e9;
constexpr double kMostProcesses = 4096;  // of a machine
constexpr double kMostSeconds = 1e9;     // some 30 years

// A number of at least `least`.
Key number(std::string_view name, Field field, double least, std::string_view help,
           double most = std::numeric_limits<double>::infinity()) {
  return {.name = name, .field = field, .help = help, .least = least, .most = most};
}

Key choice(std::string_view name, Field field, std::vector<std::string_view> choices,
           std::string_view help, std::vector<std::string_view> unsupported = {}) {
  return {.name = name,
          .field = field,
          .help = help,
          .choices = std::move(choices),
          .unsupported_choices = std::move(unsupported)};
}

// A count of steps, or a share of them.
Key steps(std::string_view name, Field field, std::string_view help, bool none_allowed = false) {
  return {.name = name,
          .field = field,
          .help = help,
          .least = 0,
          .most = kMostSteps,
          .above_least = !none_allowed,
          .steps = true};
}

// Text or a truth value.
Key plain(std::string_view name, Field field, std::string_view help) {
  return {.name = name, .field = field, .help = help};
}

std::vector<KeySection> make_sections() {
  using C = Config;
  std::vector<KeySection> sections;

  Key adapters = plain("adapter_name_or_path", &C::adapter_name_or_path,
                       "LoRA adapter folders, with commas between: the last is trained on, those "
                       "before it are merged into the model.");
  adapters.list = true;
  Key rope_scaling =
      choice("rope_scaling", &C::rope_scaling, {"linear", "yarn", "llama3"},
             "Stretch the rotary positions to rows longer than max_position_embeddings; written "
             "into the saved config.json. Left out: as config.json says.",
             {"dynamic"});
  rope_scaling.unsupported_remedy =
      "it stretches each row by its own length, so that a token's angle depends on what comes "
      "after it; take yarn";
  sections.push_back(
      {"Model",
       {plain("model_name_or_path", &C::model_name_or_path,
              "A Hugging Face model folder on this machine."),
        adapters,
        choice("flash_attn", &C::flash_attn, {"auto", "disabled", "sdpa", "fa2", "fa3"},
               "Accepted for compatibility and ignored: the built-in flash kernel is always used."),
        plain("disable_gradient_checkpointing", &C::disable_gradient_checkpointing,
              "Keep all activations: faster, more memory."),
        plain("pure_bf16", &C::pure_bf16, "Weights, gradients and optimizer state in bfloat16."),
        rope_scaling,
        choice("device", &C::device, {"auto", "cuda", "cpu"},
               "Where to compute. auto: on GPUs where there are some, one a process."),
        plain("use_cpu", &C::use_cpu, "The same as device: cpu."),
        plain("share_gpus", &C::share_gpus,
              "On GPUs: processes may be more than GPUs, share them, and exchange through the "
              "host's memory. For tests and small trials: it is slow."),
        plain("full_determinism", &C::full_determinism,
              "On GPUs: the same bits in every run, and after a resume. (On the CPU they always "
              "are.)")}});

  Key lora_dropout = number("lora_dropout", &C::lora_dropout, 0, "Dropout before LoRA's matrices.");
  lora_dropout.most = 1;
  lora_dropout.below_most = true;
  Key lora_target = plain("lora_target", &C::lora_target,
                          "Modules with LoRA matrices, with commas between (q_proj,v_proj); all: "
                          "every linear layer but the head.");
  Key freeze_modules = plain("freeze_trainable_modules", &C::freeze_trainable_modules,
                             "freeze: modules of those layers (mlp, self_attn), with commas "
                             "between; all: whole layers.");
  Key freeze_extra = plain("freeze_extra_modules", &C::freeze_extra_modules,
                           "freeze: modules outside of the layers (embed_tokens, norm, lm_head).");
  lora_target.list = freeze_modules.list = freeze_extra.list = true;
  static const std::string stage_help = help_of_stages();
  sections.push_back(
      {"Method",
       {choice("stage", &C::stage, names_of_stages(), stage_help, {"ppo"}),
        plain("do_train", &C::do_train, "Must be true."),
        plain("do_eval", &C::do_eval, "Evaluate once after training."),
        choice("finetuning_type", &C::finetuning_type, {"full", "freeze", "lora"},
               "full: all parameters. freeze: some layers. lora: small matrices beside them. "
               "(LLaMA-Factory's own default is lora.)",
               {"oft"}),
        plain("disable_shuffling", &C::disable_shuffling,
              "Take the rows as they lie in the files."),
        choice("train_sampling_strategy", &C::train_sampling_strategy, {"random", "sequential"},
               "sequential: the same as disable_shuffling: true."),
        number("lora_rank", &C::lora_rank, 1, "Inner dimension of the LoRA matrices.", kMostTokens),
        number("lora_alpha", &C::lora_alpha, 1,
               "LoRA's scale is alpha / rank; left out: twice the rank.", kMostTokens),
        lora_dropout, lora_target,
        plain("use_rslora", &C::use_rslora, "LoRA's scale is alpha / sqrt(rank)."),
        plain("freeze_trainable_layers", &C::freeze_trainable_layers,
              "freeze: train the last so many layers; negative: the first."),
        freeze_modules, freeze_extra}});

  Key label_smoothing = number("dpo_label_smoothing", &C::dpo_label_smoothing, 0,
                               "sigmoid: share of the pairs that are taken as swapped.");
  label_smoothing.most = 0.5;
  Key value_head_dropout = number("value_head_dropout", &C::value_head_dropout, 0,
                                  "rm: dropout before the value head, in training. TRL and "
                                  "LLaMA-Factory always drop 0.1; with 0 the logged loss is that "
                                  "of the head that is saved.");
  value_head_dropout.most = 1;
  value_head_dropout.below_most = true;
  Key pref_beta = number("pref_beta", &C::pref_beta, 0, "Strength of the preference.");
  pref_beta.above_least = true;
  sections.push_back(
      {"Preferences",
       {pref_beta,
        choice("pref_loss", &C::pref_loss, names_of_pair_losses(), "Loss of a pair of answers."),
        number("pref_ftx", &C::pref_ftx, 0, "Weight of the chosen answer's own SFT loss."),
        label_smoothing,
        number("simpo_gamma", &C::simpo_gamma, 0, "simpo: margin between the answers."),
        number("kto_chosen_weight", &C::kto_chosen_weight, 0, "kto: weight of good answers."),
        number("kto_rejected_weight", &C::kto_rejected_weight, 0, "kto: weight of bad answers."),
        plain("ref_model", &C::ref_model,
              "The reference model's folder. Left out: the model itself as it is at the start."),
        plain("ref_model_adapters", &C::ref_model_adapters,
              "LoRA adapter folders of the reference model, with commas between."),
        plain("precompute_ref_log_probs", &C::precompute_ref_log_probs,
              "Compute the reference's log-probabilities once, keep them in output_dir, and free "
              "the reference model."),
        plain("pref_share_prompt", &C::pref_share_prompt,
              "Compute the prompt of a pair once for both answers: same loss, less work."),
        value_head_dropout}});

  Key dataset = plain("dataset", &C::dataset, "Names in dataset_info.json, with commas between.");
  Key eval_dataset = plain("eval_dataset", &C::eval_dataset, "The same, for evaluation.");
  dataset.list = eval_dataset.list = true;
  Key val_size =
      number("val_size", &C::val_size, 0,
             "Rows of `dataset` that become the validation split: a share below 1, or a count.",
             kMostSteps);
  static const std::string packing_help =
      fmt::format("Fill each row with documents up to cutoff_len; left out: for stage {}.",
                  enumerated(names_of_stages_that([](const Stage& stage) { return stage.packs; })));
  sections.push_back(
      {"Data",
       {dataset, eval_dataset,
        plain("dataset_dir", &C::dataset_dir, "The folder that holds dataset_info.json."),
        choice(
            "template", &C::chat_template,
            {"qwen", "qwen3", "qwen3_nothink", "llama3", "mistral", "chatml", "default", "empty"},
            "How a conversation becomes text. Left out: the model's own chat_template.",
            {"alpaca", "deepseek3", "gemma", "gemma3", "llama2", "llama4", "phi4", "qwen3_5",
             "qwen3_vl", "qwen2_vl", "vicuna", "zephyr", "deepseekr1", "gpt_oss", "glm4", "yi",
             "fewshot"}),
        number("cutoff_len", &C::cutoff_len, 1,
               "Tokens of a row; longer ones are cut turn by turn.", kMostTokens),
        number("max_samples", &C::max_samples, 1, "At most so many rows of each dataset.",
               kMostSteps),
        number("preprocessing_num_workers", &C::preprocessing_num_workers, 1,
               "Threads that tokenize; left out: one for each core.", kMostProcesses),
        val_size, plain("mask_history", &C::mask_history, "Train on the last answer only."),
        plain("train_on_prompt", &C::train_on_prompt, "Train on the prompts too."),
        plain("default_system", &C::default_system,
              "System message of rows that have none; replaces the template's own."),
        plain("enable_thinking", &C::enable_thinking,
              "Given to the model's chat_template when false."),
        choice("on_bad_row", &C::on_bad_row, {"stop", "skip"},
               "When rows of a data set cannot be used: stop, or leave them out."),
        plain("packing", &C::packing, packing_help),
        plain("neat_packing", &C::neat_packing,
              "packing whose documents do not see each other.")}});

  Key report_to =
      choice("report_to", &C::report_to, {"none", "tensorboard", "all"},
             "tensorboard: also write event files that TensorBoard reads. all: the same.",
             {"wandb", "swanlab", "mlflow", "trackio", "comet_ml", "neptune", "clearml",
              "codecarbon", "azure_ml", "dagshub", "dvclive", "flyte"});
  report_to.unsupported_remedy_of = remedy_of_service;
  report_to.list = true;
  Key resume =
      plain("resume_from_checkpoint", &C::resume_from_checkpoint,
            "The checkpoint to go on from; true: the newest whole one in output_dir, which "
            "is also the default unless overwrite_output_dir is set. Workers that torchrun starts "
            "again, and a requeued Slurm job, go on from what the run has saved since.");
  resume.truth = true;
  sections.push_back(
      {"Output",
       {plain("output_dir", &C::output_dir, "Where everything is written."),
        plain("overwrite_output_dir", &C::overwrite_output_dir,
              "Train although output_dir holds results already."),
        plain("fallback_output_dir", &C::fallback_output_dir,
              "A folder on another disk, where the trained model, or a stopped run's checkpoint, "
              "goes "
              "when output_dir cannot take it: into a folder of this run's own there, named by "
              "output_dir. The run goes on from that checkpoint, too. Left out: it waits for "
              "room."),
        report_to,
        plain("logging_dir", &C::logging_dir,
              "Where TensorBoard's files go. Left out: runs in output_dir."),
        plain("run_name", &C::run_name,
              "The run's name in TensorBoard: a folder of its own in logging_dir."),
        choice("logging_strategy", &C::logging_strategy, {"no", "steps", "epoch"},
               "When to log a line of the training."),
        steps("logging_steps", &C::logging_steps, "Optimizer steps between log lines."),
        plain("logging_first_step", &C::logging_first_step, "Log the first step too."),
        plain("disable_tqdm", &C::disable_tqdm, "Show no progress bar."),
        choice("save_strategy", &C::save_strategy, {"no", "steps", "epoch"},
               "When to save on the way; the end is always saved."),
        steps("save_steps", &C::save_steps, "Optimizer steps between saves."),
        number("save_total_limit", &C::save_total_limit, 1,
               "Keep so many checkpoints, delete the older ones.", kMostSteps),
        plain("save_only_model", &C::save_only_model,
              "Leave out of checkpoints what resuming needs."),
        resume, plain("plot_loss", &C::plot_loss, "Write training_loss.png.")}});

  Key num_train_epochs =
      number("num_train_epochs", &C::num_train_epochs, 0, "Passes over the data.", kMostEpochs);
  num_train_epochs.above_least = true;
  Key warmup_ratio = number("warmup_ratio", &C::warmup_ratio, 0,
                            "Share of the steps in which the learning rate rises from 0.");
  warmup_ratio.most = 1;
  static const std::string optimizer_help = help_of_optimizers();
  Key beta1 = number("adam_beta1", &C::adam_beta1, 0, "AdamW's first decay.");
  Key beta2 = number("adam_beta2", &C::adam_beta2, 0, "AdamW's second decay.");
  beta1.most = beta2.most = 1;
  beta1.below_most = beta2.below_most = true;
  sections.push_back(
      {"Training",
       {number("per_device_train_batch_size", &C::per_device_train_batch_size, 1,
               "Rows of a micro-batch; under sequence parallelism a whole group's.", kMostRows),
        number("gradient_accumulation_steps", &C::gradient_accumulation_steps, 1,
               "Micro-batches of an optimizer step.", kMostRows),
        number("learning_rate", &C::learning_rate, 0, "AdamW's learning rate."),
        num_train_epochs,
        {.name = "max_steps",
         .field = &C::max_steps,
         .help = "Stop after so many optimizer steps; -1: num_train_epochs decides.",
         .least = -1,
         .most = kMostSteps,
         .not_zero = true},
        choice(
            "lr_scheduler_type", &C::lr_scheduler_type,
            {"linear", "cosine", "constant", "constant_with_warmup"},
            "How the learning rate falls after the warmup.",
            {"cosine_with_restarts", "polynomial", "inverse_sqrt", "reduce_lr_on_plateau",
             "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"}),
        warmup_ratio,
        steps("warmup_steps", &C::warmup_steps, "The same in optimizer steps.",
              /*none_allowed=*/true),
        number("max_grad_norm", &C::max_grad_norm, 0, "Clip the global gradient norm; 0: never."),
        number("weight_decay", &C::weight_decay, 0, "AdamW's decay of matrices."),
        beta1,
        beta2,
        number("adam_epsilon", &C::adam_epsilon, 0, "AdamW's epsilon."),
        choice(
            "optim", &C::optim, names_of_optimizers(), optimizer_help,
            {"adamw_hf", "adafactor", "sgd", "lion_8bit", "paged_adamw_8bit", "paged_adamw_32bit"}),
        number("moe_aux_loss_coef", &C::moe_aux_loss_coef, 0,
               "Weight of the auxiliary loss that balances the load of experts; left out: as the "
               "model's config.json has it; 0: none."),
        choice("on_nonfinite", &C::on_nonfinite, {"stop", "skip"},
               "When the loss or a gradient is NaN or infinite: stop, or skip the step."),
        plain("bf16", &C::bf16, "Compute in bfloat16, keep the weights in fp32."),
        number("seed", &C::seed, 0, "Seed of the order of rows and of the evaluation split."),
        number("data_seed", &C::data_seed, 0, "The same as seed, which orders the rows."),
        number("ddp_timeout", &C::ddp_timeout, 1,
               "Seconds to wait for another process; reading and writing models is not counted.",
               kMostSeconds),
        choice("eval_strategy", &C::eval_strategy, {"no", "steps", "epoch"}, "When to evaluate."),
        steps("eval_steps", &C::eval_steps,
              "Optimizer steps between evaluations; left out: logging_steps."),
        number("per_device_eval_batch_size", &C::per_device_eval_batch_size, 1,
               "Rows of an evaluation micro-batch.", kMostRows)}});

  Key zero_stage = number("zero_stage", &C::zero_stage, 0,
                          "What the processes divide among them: 1 the optimizer's states, 2 also "
                          "gradients, 3 also parameters; left out: 0, nothing.");
  zero_stage.most = 3;
  Key offload_activations =
      choice("offload_activations", &C::offload_activations, {"false", "true", "disk"},
             "Keep what gradient checkpointing keeps in host memory, or in offload_folder.");
  offload_activations.truth = true;
  sections.push_back(
      {"Memory",
       {plain("deepspeed", &C::deepspeed,
              "A DeepSpeed JSON file, of which ZeRO's stage and offloading are read."),
        zero_stage,
        number("zero_shard_size", &C::zero_shard_size, 1,
               "Neighbouring processes that hold one divided copy (hybrid sharding); left out: all "
               "of them.",
               kMostTokens),
        plain("offload_optimizer", &C::offload_optimizer,
              "Keep the optimizer's states in host memory and update there."),
        plain("offload_params", &C::offload_params,
              "Keep parameters in host memory while they are not used; zero_stage: 3."),
        offload_activations,
        plain("offload_folder", &C::offload_folder, "Where offload_activations: disk writes."),
        number("tiled_mlp", &C::tiled_mlp, 1,
               "Compute each MLP in so many parts of the row, forward and backward.",
               kMostTokens)}});

  const auto names_that = [](const auto& has) { return names_of(methods_that(has)); };
  static const std::string with_degrees = names_that(has_degrees);
  static const std::string ulysses_degree_help =
      with_degrees + ": processes that exchange heads; left out: chosen.";
  static const std::string ring_degree_help =
      with_degrees + ": processes of a ring; left out: chosen.";
  static const std::string window_help =
      names_that(has_windows) + ": processes of an inner ring; left out: those of a machine.";
  static const std::string waves_help = help_of_waves();
  sections.push_back(
      {"Processes",
       {number("nproc_per_node", &C::nproc_per_node, 1,
               "Workers on this machine; left out: one for each GPU, or one.", kMostProcesses),
        number("sequence_parallel_size", &C::sequence_parallel_size, 1,
               "Processes that share each row; must divide the number of processes."),
        choice("sequence_parallel_mode", &C::sequence_parallel_mode, auto_or_methods(),
               "How they share it. auto, or left out: by heads, processes and row, with the reason "
               "said."),
        number("sequence_parallel_ulysses_degree", &C::sequence_parallel_ulysses_degree, 1,
               ulysses_degree_help),
        number("sequence_parallel_ring_degree", &C::sequence_parallel_ring_degree, 1,
               ring_degree_help),
        number("sequence_parallel_window_size", &C::sequence_parallel_window_size, 1, window_help),
        number("sequence_parallel_head_waves", &C::sequence_parallel_head_waves, 1, waves_help),
        number("expert_parallel_size", &C::expert_parallel_size, 1,
               "Neighbouring processes that share out the experts of each layer; must divide the "
               "numbers of processes and of experts.")}});
  Key export_size = number("export_size", &C::export_size, 0, "GB of a weight file at most.", 1e9);
  export_size.above_least = true;
  sections.push_back(
      {"Export (longspan export)",
       {plain("export_dir", &C::export_dir, "Where the merged model is written."), export_size}});
  return sections;
}

}  // namespace

const std::vector<KeySection>& key_sections() {
  static const std::vector<KeySection> sections = make_sections();
  return sections;
}

}  // namespace longspan
