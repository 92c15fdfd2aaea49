// What the user wrote, with every default visible: LLaMA-Factory's keys by their own names. No
// torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

/// The model, where it comes from, and in which numbers it computes.
struct ModelSettings {
  std::string model_name_or_path;
  std::string adapter_name_or_path;  // comma list: all but the last are merged, the last is trained
  std::string flash_attn = "auto";
  bool disable_gradient_checkpointing = false;
  bool pure_bf16 = false;
  std::string rope_scaling;     // linear | yarn | llama3; empty: as config.json says
  std::string device = "auto";  // auto | cuda | cpu
  bool use_cpu = false;         // read into device
  bool share_gpus = false;
  bool full_determinism = false;
};

/// What is trained of it: all, some layers, or adapters.
struct MethodSettings {
  std::string stage = "sft";  // pt | sft | rm | dpo | kto
  bool do_train = false;
  bool do_eval = false;
  std::string finetuning_type = "full";  // full | freeze | lora
  bool disable_shuffling = false;
  std::string train_sampling_strategy = "random";  // random | sequential; read into the line above
  int64_t lora_rank = 8;
  std::optional<int64_t> lora_alpha;  // absent: twice the rank
  double lora_dropout = 0.0;
  std::string lora_target = "all";
  bool use_rslora = false;
  int64_t freeze_trainable_layers = 2;  // negative: the first ones
  std::string freeze_trainable_modules = "all";
  std::string freeze_extra_modules;
};

/// Losses of preferences, and the reference model.
struct PreferenceSettings {
  double pref_beta = 0.1;
  std::string pref_loss = "sigmoid";  // sigmoid | hinge | ipo | kto_pair | orpo | simpo
  double pref_ftx = 0.0, dpo_label_smoothing = 0.0, simpo_gamma = 0.5;
  double kto_chosen_weight = 1.0, kto_rejected_weight = 1.0;
  std::string ref_model, ref_model_adapters;
  bool precompute_ref_log_probs = false;
  bool pref_share_prompt = false;
  double value_head_dropout = 0.0;  // stage rm
};

/// Data sets, and how their rows become tokens.
struct DataSettings {
  std::string dataset, eval_dataset, dataset_dir = "data";
  std::string chat_template;  // key `template`; empty: the model's own chat_template
  int64_t cutoff_len = 2048;
  std::optional<int64_t> max_samples;
  std::optional<int64_t> preprocessing_num_workers;
  double val_size = 0.0;
  bool mask_history = false, train_on_prompt = false;
  std::optional<std::string> default_system;
  bool enable_thinking = true;
  std::string on_bad_row = "stop";  // stop | skip
  std::optional<bool> packing;      // absent: true for pt, else false
  bool neat_packing = false;
};

/// What a run writes, where and how often.
struct OutputSettings {
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::string fallback_output_dir;  // where the model goes when output_dir's disk is full
  std::string report_to = "none";   // none | tensorboard
  std::string logging_dir;          // of TensorBoard's files; empty: output_dir/runs
  std::string run_name;
  // Steps: a number below 1 is a share of all steps (steps_of).
  std::string logging_strategy = "steps";  // no | steps | epoch
  double logging_steps = 10;
  bool logging_first_step = false;
  bool disable_tqdm = false;
  std::string save_strategy = "steps";  // no | steps | epoch
  double save_steps = 500;
  std::optional<int64_t> save_total_limit;
  bool save_only_model = false;
  std::string resume_from_checkpoint;  // empty: the newest whole one in output_dir
  bool plot_loss = false;
};

/// Batches, steps, and what updates parameters.
struct OptimizationSettings {
  int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  double learning_rate = 5e-5, num_train_epochs = 3.0, max_grad_norm = 1.0;
  int64_t max_steps = -1;
  std::string lr_scheduler_type = "linear";
  double warmup_ratio = 0.0;
  double warmup_steps = 0;
  double weight_decay = 0.0, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  std::string optim = "adamw_torch";        // adamw_torch[_fused] | adamw_8bit
  std::string on_nonfinite = "stop";        // stop | skip
  std::optional<double> moe_aux_loss_coef;  // absent: as the model's config.json has it
  bool bf16 = false;
  int64_t seed = 42;
  std::optional<int64_t> data_seed;  // as seed
  std::string eval_strategy = "no";  // no | steps | epoch
  std::optional<double> eval_steps;
};

/// Sharding, offloading and chunks.
struct MemorySettings {
  std::string deepspeed;  // a DeepSpeed JSON, of which stage and offloading are read
  std::optional<int64_t> zero_stage, zero_shard_size;
  bool offload_optimizer = false, offload_params = false;
  std::string offload_activations = "false";  // false | true | disk
  std::string offload_folder = "offload";
  std::optional<int64_t> tiled_mlp;
};

/// `longspan export`.
struct ExportSettings {
  std::string export_dir;
  double export_size = 5.0;  // GB of a file
};

/// Sequence parallelism, expert parallelism and launching.
struct ParallelSettings {
  int64_t ddp_timeout = 1800;
  int expert_parallel_size = 1;
  int sequence_parallel_size = 1;
  std::optional<std::string> sequence_parallel_mode;  // absent or "auto": chosen
  std::optional<int> sequence_parallel_ulysses_degree, sequence_parallel_ring_degree;
  std::optional<int> sequence_parallel_window_size, sequence_parallel_head_waves;
  std::optional<int> nproc_per_node;
};

/// All keys. What needs one room of it takes that room alone.
struct Config : ModelSettings,
                MethodSettings,
                PreferenceSettings,
                DataSettings,
                OutputSettings,
                OptimizationSettings,
                MemorySettings,
                ExportSettings,
                ParallelSettings {
  /// What to tell the user about keys that were taken.
  std::vector<std::string> notes;
};

/// Reads a YAML (or JSON) file and then `key=value` / `--key value` overrides. Throws UserError:
/// missing file, broken YAML (file, line), an unknown key (names the nearest known one), a known
/// key that is not supported (by name), a value of the wrong type or out of range.
Config load_config(const std::string& path, const std::vector<std::string>& overrides);

/// The same for `longspan export`, which looks at fewer keys and takes those of training that its
/// users' files also hold.
Config load_export_config(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace longspan
