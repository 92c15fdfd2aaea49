// Differences from LLaMA-Factory, for `longspan help KEY`.
#include <algorithm>

#include "longspan/config/keys.h"

namespace longspan {

namespace {

constexpr std::string_view kOwn = "It has no such key.";
constexpr std::string_view kDeepSpeed =
    "It has no such key; a DeepSpeed file says it, which the key deepspeed takes here too.";
constexpr std::string_view kShare =
    "It has no sequence parallelism in its main trainer; the name is 360-LLaMA-Factory's.";

}  // namespace

const std::vector<KeyNote>& key_notes() {
  static const std::vector<KeyNote> notes = {
      {"model_name_or_path", "A model's name on a hub works there; here nothing is fetched."},
      {"flash_attn", "The value chooses among kernels there."},
      {"device", kOwn},
      {"share_gpus", kOwn},
      {"finetuning_type", "The default there is lora."},
      {"train_sampling_strategy", "It is transformers' key; group_by_length is not here."},
      {"precompute_ref_log_probs", kOwn},
      {"pref_share_prompt", kOwn},
      {"value_head_dropout", "It has no such key; the dropout is 0.1."},
      {"dataset", "Names on a hub work there; here nothing is fetched."},
      {"on_bad_row", kOwn},
      {"packing",
       "Rows of sft are one token shorter there, and pt drops what fills no row after every 1000 "
       "texts; here once, at the end."},
      {"preprocessing_num_workers", "They are processes there, and one by default."},
      {"fallback_output_dir", kOwn},
      {"logging_steps", "The default there is 500."},
      {"per_device_train_batch_size",
       "The rows of one process there; here of a group of sequence_parallel_size processes."},
      {"warmup_ratio",
       "transformers 5.23 has it no longer: warmup_steps below 1 is the same, here too."},
      {"moe_aux_loss_coef",
       "The loss is of each micro-batch there, and their sum; here it is of the whole global "
       "batch. "
       "0 is the same as left out there."},
      {"on_nonfinite", kOwn},
      {"data_seed", "It may differ from seed there."},
      {"deepspeed",
       "Of the file ZeRO's stage, offload_optimizer, offload_param and mics_shard_size are read; "
       "sizes of buckets mean nothing here."},
      {"zero_stage", kDeepSpeed},
      {"zero_shard_size", kDeepSpeed},
      {"offload_optimizer", kDeepSpeed},
      {"offload_params", kDeepSpeed},
      {"offload_activations", kOwn},
      {"offload_folder", kOwn},
      {"tiled_mlp", kOwn},
      {"nproc_per_node",
       "It has no such key; the environment variable NPROC_PER_NODE says it, here too."},
      {"sequence_parallel_size", kShare},
      {"sequence_parallel_mode", kShare},
      {"sequence_parallel_ulysses_degree", kOwn},
      {"sequence_parallel_ring_degree", kOwn},
      {"sequence_parallel_window_size", kOwn},
      {"sequence_parallel_head_waves", kOwn},
      {"expert_parallel_size", kOwn},
  };
  return notes;
}

const KeyNote* note_on(std::string_view name) {
  const auto found = std::ranges::find(key_notes(), name, &KeyNote::name);
  return found == key_notes().end() ? nullptr : &*found;
}

}  // namespace longspan
