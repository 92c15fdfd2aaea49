// The model, its device and its dtypes. No torch.
#pragma once

#include <string>

namespace longspan {

struct ModelSettings {
  std::string model_name_or_path;
  std::string adapter_name_or_path;  // comma list: the last is trained, the others are merged
  std::string flash_attn = "auto";
  bool disable_gradient_checkpointing = false;
  bool pure_bf16 = false;
  std::string rope_scaling;     // linear | yarn | llama3; empty: as config.json says
  std::string device = "auto";  // auto | cuda | cpu
  bool use_cpu = false;         // sets device
  bool share_gpus = false;
  bool full_determinism = false;
  bool tf32 = false;
};

}  // namespace longspan
