// Sharding, offloading and chunks. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

struct MemorySettings {
  std::string deepspeed;  // a DeepSpeed JSON, read for stage and offloading
  std::string fsdp;       // words of transformers
  std::optional<int64_t> zero_stage, zero_shard_size;
  bool offload_optimizer = false, offload_params = false;
  std::string offload_activations = "false";  // false | true | disk
  std::string offload_folder = "offload";
  std::optional<int64_t> tiled_mlp;
  std::optional<int64_t> kept_mlp_layers;  // -1: as many as fit
};

}  // namespace longspan
