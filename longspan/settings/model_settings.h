// The model, its device and its dtypes. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

struct ModelSettings {
  std::string model_name_or_path;
  std::string adapter_name_or_path;  // comma list: the last is trained, the others are merged
  std::string flash_attn = "auto";
  std::optional<int64_t> quantization_bit;  // of frozen matrices; not set: as they are used
  std::string quantization_method = "bnb";  // bnb | bitsandbytes
  std::string quantization_type = "nf4";    // nf4 | fp4
  bool double_quantization = true;
  bool disable_gradient_checkpointing = false;
  bool pure_bf16 = false;
  std::string rope_scaling;     // linear | yarn | llama3; empty: as config.json says
  std::string device = "auto";  // auto | cuda | cpu
  bool use_cpu = false;         // sets device
  bool share_gpus = false;
  bool full_determinism = false;
  std::string reduce_scatter = "auto";  // auto | nccl | exchange
  bool tf32 = false;
};

}  // namespace longspan
