// Keys: savings of memory.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"

namespace longspan::key_tables {

KeySection memory_keys() {
  using S = MemorySettings;
  using enum OnResume;
  Key zero_stage =
      noted(number("zero_stage", &S::zero_stage, kFree, 0,
                   "What the processes shard. 1: the optimizer's states; 2: also gradients; 3: "
                   "also parameters; left out: 0, nothing."),
            kDeepSpeed);
  zero_stage.most = 3;
  Key offload_activations = noted(
      choice("offload_activations", &S::offload_activations, kFree, {"false", "true", "disk"},
             "Put what gradient checkpointing saves into host memory, or into offload_folder."),
      kOwn);
  offload_activations.truth = true;
  return {
      "Memory",
      {noted(plain("deepspeed", &S::deepspeed, kFree,
                   "A DeepSpeed JSON file, of which ZeRO's stage and offloading are read."),
             "Of the file ZeRO's stage, offload_optimizer, offload_param and mics_shard_size are "
             "read; sizes of buckets mean nothing here."),
       zero_stage,
       noted(
           number(
               "zero_shard_size", &S::zero_shard_size, kFree, 1,
               "Neighbouring processes that hold one sharded copy (hybrid sharding); left out: all "
               "of them.",
               kMostTokens),
           kDeepSpeed),
       noted(plain("offload_optimizer", &S::offload_optimizer, kFree,
                   "Keep the optimizer's states in host memory and update there."),
             kDeepSpeed),
       noted(plain("offload_params", &S::offload_params, kFree,
                   "Keep parameters in host memory while they are not used; zero_stage: 3."),
             kDeepSpeed),
       offload_activations,
       noted(plain("offload_folder", &S::offload_folder, kFree,
                   "The folder of the files of offload_activations: disk."),
             kOwn),
       noted(number("tiled_mlp", &S::tiled_mlp, kFree, 1,
                    "Parts of the row in which each MLP is computed, forward and backward.",
                    kMostTokens),
             kOwn),
       noted(number("kept_mlp_layers", &S::kept_mlp_layers, kFree, -1,
                    "Layers whose MLP keeps gate and up for the backward, where gradient "
                    "checkpointing would compute them again; -1: as many as fit by the account of "
                    "memory; left out: -1 on GPUs without offload_activations and "
                    "full_determinism, else 0."),
             kOwn)}};
}

}  // namespace longspan::key_tables
