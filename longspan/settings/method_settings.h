// The trained part of the model: all, some layers, or adapters. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/settings/generation_settings.h"

namespace longspan {

struct MethodSettings {
  std::string stage = "sft";  // a name of the register (registers/stage.h)
  bool do_train = false;
  bool do_eval = false;
  GenerationSettings generation;
  std::string finetuning_type = "full";  // full | freeze | lora
  bool disable_shuffling = false;
  std::string train_sampling_strategy = "random";  // random | sequential; sets disable_shuffling
  int64_t lora_rank = 8;
  std::optional<int64_t> lora_alpha;  // not set: twice the rank
  double lora_dropout = 0.0;
  std::string lora_target = "all";
  bool use_rslora = false, use_dora = false;
  std::string additional_target;  // modules trained beside the adapter
  bool resize_vocab = false;      // rows of embedding and head for all tokens of the tokenizer
  bool pissa_init = false, pissa_convert = false;
  int64_t pissa_iter = 16;              // -1: an exact decomposition
  int64_t freeze_trainable_layers = 2;  // negative: the first layers
  std::string freeze_trainable_modules = "all";
  std::string freeze_extra_modules;
  // Parts of a model that takes pictures. These keys apply to every finetuning_type.
  bool freeze_vision_tower = true, freeze_multi_modal_projector = true;
  bool freeze_language_model = false;
};

}  // namespace longspan
