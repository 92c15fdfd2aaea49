// Keys: savings of memory.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"

namespace longspan::key_tables {

KeySection memory_keys() {
  using S = MemorySettings;
  using enum OnResume;
  Key zero_stage =
      noted(number("zero_stage", &S::zero_stage, kFree, 0,
                   "Level of sharding. 1: the optimizer's states; 2: also gradients; 3: "
                   "also parameters; left out: 0, nothing."),
            kDeepSpeed);
  zero_stage.most = 3;
  Key offload_activations =
      noted(choice("offload_activations", &S::offload_activations, kFree, {"false", "true", "disk"},
                   "Put the tensors that gradient checkpointing saves into host memory, or (disk) "
                   "into offload_folder."),
            kOwn);
  offload_activations.truth = true;
  Key fsdp = noted(plain("fsdp", &S::fsdp, kFree,
                         "Words of transformers, with commas or blanks between. full_shard: "
                         "zero_stage: 3; shard_grad_op: 2; no_shard: 0; offload: also "
                         "offload_optimizer, and offload_params with full_shard; auto_wrap: "
                         "nothing more."),
                   "It shards by PyTorch's FSDP.");
  fsdp.list = true;
  return {
      "Memory",
      {noted(
           plain(
               "deepspeed", &S::deepspeed, kFree,
               "A DeepSpeed JSON file; only ZeRO's stage, its shard size and offloading are read."),
           "Longspan reads ZeRO's stage, offload_optimizer, offload_param and mics_shard_size; it "
           "has "
           "no buckets, so their sizes are no-ops."),
       fsdp, zero_stage,
       noted(number("zero_shard_size", &S::zero_shard_size, kFree, 1,
                    "Number of neighbouring processes that hold one sharded copy (hybrid "
                    "sharding); left out: all processes.",
                    kMostTokens),
             kDeepSpeed),
       noted(plain("offload_optimizer", &S::offload_optimizer, kFree,
                   "Keep the optimizer's states in host memory and update there."),
             kDeepSpeed),
       noted(plain("offload_params", &S::offload_params, kFree,
                   "Keep parameters in host memory while they are not used; needs zero_stage: 3."),
             kDeepSpeed),
       offload_activations,
       noted(plain("offload_folder", &S::offload_folder, kFree,
                   "The folder of the files of offload_activations: disk."),
             kOwn),
       noted(
           number("tiled_mlp", &S::tiled_mlp, kFree, 1,
                  "Number of parts of the row in which each MLP is computed, forward and backward.",
                  kMostTokens),
           kOwn),
       noted(number("kept_mlp_layers", &S::kept_mlp_layers, kFree, -1,
                    "Number of layers whose MLP keeps gate and up for the backward; gradient "
                    "checkpointing recomputes them in the others. -1: as many as fit by the memory "
                    "account. Left out: 0 on CPUs and with offload_activations or "
                    "full_determinism, else -1."),
             kOwn)}};
}

}  // namespace longspan::key_tables
