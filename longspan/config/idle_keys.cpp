// Keys without effect, opposite keys and old names of keys.
#include "longspan/config/keys.h"

namespace longspan {

const std::vector<IdleKey>& idle_keys() {
  static const std::vector<IdleKey> keys = {
      {"preprocessing_batch_size", "tokenizing needs no batches"},
      {"dataloader_num_workers",
       "rows are tokenized by threads of one process, before or during training"},
      {"dataloader_pin_memory",
       "rows are tokenized by threads of one process, before or during training"},
      {"dataloader_persistent_workers", "there are no loader processes"},
      {"dataloader_prefetch_factor", "there are no loader processes"},
      {"dataloader_in_order", "there are no loader processes"},
      {"data_shared_file_system", "one process of each machine reads the files"},
      {"trust_remote_code", "code from a model folder is never run"},
      {"use_fast_tokenizer", "the fast tokenizer is the only one"},
      {"low_cpu_mem_usage", "weights are always read one tensor at a time"},
      {"gradient_checkpointing_kwargs", "gradient checkpointing here has no variants"},
      {"use_reentrant_gc", "gradient checkpointing here has no variants"},
      {"use_unsloth_gc", "the key offload_activations moves activations to host memory"},
      {"use_unsloth", "Longspan has its own kernels"},
      {"enable_liger_kernel", "the head and its loss are always fused"},
      {"use_liger_kernel", "the head and its loss are always fused"},
      {"liger_kernel_config", "the head and its loss are always fused"},
      {"use_v1_kernels", "Longspan has its own kernels"},
      {"fp8", "matrices are multiplied in bf16 (bf16: true), which is slower and rounds less"},
      {"fp8_backend", "matrices are multiplied in bf16"},
      {"fp8_enable_fsdp_float8_all_gather", "weights are gathered in the dtype of the computation"},
      {"fsdp_transformer_layer_cls_to_wrap", "each layer is gathered by itself"},
      {"fsdp_min_num_params", "each layer is gathered by itself"},
      {"torch_compile", "there is no Python model to compile"},
      {"torch_compile_backend", "there is no Python model to compile"},
      {"torch_compile_mode", "there is no Python model to compile"},
      {"torch_empty_cache_steps", "freed memory is always reused"},
      {"ddp_backend", "GPUs use NCCL, CPUs use Gloo"},
      {"ddp_find_unused_parameters", "every parameter has a gradient"},
      {"ddp_bucket_cap_mb", "gradients are reduced in buckets of a fixed size"},
      {"ddp_broadcast_buffers", "models have no buffers to send"},
      {"ddp_static_graph", "gradients are summed without DDP"},
      {"group_by_length", "rows are never padded, so lengths need no grouping"},
      {"length_column_name", "rows are never padded, so lengths need no grouping"},
      {"use_cache", "training keeps no key-value cache"},
      {"use_kv_cache", "training keeps no key-value cache"},
      {"remove_unused_columns", "only columns with a role are read"},
      {"print_param_status", "the number of parameters is always printed"},
      {"include_num_input_tokens_seen", "tokens are always counted"},
      {"include_effective_tokens_per_second", "tokens per second are always printed"},
      {"include_tokens_per_second", "tokens per second are always printed"},
      {"skip_memory_metrics", "memory.json always has the measured memory"},
      {"log_level", "messages do not depend on a level"},
      {"log_level_replica", "only the first process logs"},
      {"log_on_each_node", "only the first process logs"},
      {"logging_nan_inf_filter", "on_nonfinite decides how a run handles a NaN or infinite loss"},
      {"prediction_loss_only", "predict_with_generate says whether an evaluation generates"},
      {"eval_accumulation_steps", "an evaluation keeps no predictions"},
      {"eval_do_concat_batches", "an evaluation keeps no predictions"},
      {"metric_for_best_model", "load_best_model_at_end is not supported"},
      {"greater_is_better", "load_best_model_at_end is not supported"},
      {"save_safetensors", "weights are always written as safetensors"},
      {"hub_model_id", "nothing is sent to a hub"},
      {"hub_strategy", "nothing is sent to a hub"},
      {"hub_private_repo", "nothing is sent to a hub"},
      {"hub_always_push", "nothing is sent to a hub"},
      {"hub_token", "nothing is sent to a hub"},
      {"hf_hub_token", "nothing is fetched from a hub"},
      {"ms_hub_token", "nothing is fetched from a hub"},
      {"om_hub_token", "nothing is fetched from a hub"},
  };
  return keys;
}

const std::vector<OppositeKey>& opposite_keys() {
  static const std::vector<OppositeKey> keys = {
      {"gradient_checkpointing", "disable_gradient_checkpointing",
       "false is disable_gradient_checkpointing: true. Checkpointing is on without either of them, "
       "as in LLaMA-Factory; in transformers it is off."},
  };
  return keys;
}

const std::vector<RenamedKey>& renamed_keys() {
  static const std::vector<RenamedKey> keys = {
      {"evaluation_strategy", "eval_strategy"},
      {"per_gpu_train_batch_size", "per_device_train_batch_size"},
      {"per_gpu_eval_batch_size", "per_device_eval_batch_size"},
      {"no_cuda", "use_cpu"},
  };
  return keys;
}

}  // namespace longspan
