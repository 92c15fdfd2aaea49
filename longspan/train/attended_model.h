// What attention each layer of a run has.
#pragma once

#include "longspan/models/model_config.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

/// The model as its attentions see it in training: the plan, the account of memory and the formula
/// of traffic are made from this. Latents do not travel where an adapter with dropout is on the
/// layer that makes keys and values of them (with_latents_kept in spec/lora_spec.h). Reads the
/// adapter that is trained further, where that matters. Throws UserError.
ModelSpec attended_model(const Config& config, const ModelConfig& model);

}  // namespace longspan
