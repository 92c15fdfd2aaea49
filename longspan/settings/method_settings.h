// The trained part of the model: all, some layers, or adapters. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

struct MethodSettings {
  std::string stage = "sft";  // a name of the register (registers/stage.h)
  bool do_train = false;
  bool do_eval = false;
  std::string finetuning_type = "full";  // full | freeze | lora
  bool disable_shuffling = false;
  std::string train_sampling_strategy = "random";  // random | sequential; sets disable_shuffling
  int64_t lora_rank = 8;
  std::optional<int64_t> lora_alpha;  // not set: twice the rank
  double lora_dropout = 0.0;
  std::string lora_target = "all";
  bool use_rslora = false;
  int64_t freeze_trainable_layers = 2;  // negative: the first layers
  std::string freeze_trainable_modules = "all";
  std::string freeze_extra_modules;
  // Parts of a model that takes pictures. These keys apply to every finetuning_type.
  bool freeze_vision_tower = true, freeze_multi_modal_projector = true;
  bool freeze_language_model = false;
};

}  // namespace longspan
