// The model that a run trains, as data: its files' own, and what attention each layer has. No
// torch.
#pragma once

#include <string>

#include "longspan/models/model_config.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

/// The model of a folder as the configuration trains it: with rope_scaling for rows of cutoff_len
/// tokens, else with the positions that its adapters were trained with. Checks that its sizes are
/// those of the folder's weights, so that nothing larger than these is made by them. Throws
/// UserError.
ModelConfig model_config_for(const Config& config, const std::string& folder);

/// The model as its attentions see it in training: the plan, the account of memory and the formula
/// of traffic are made from this. Latents do not travel where an adapter with dropout is on the
/// layer that makes keys and values of them (with_latents_kept in spec/lora_spec.h). Reads the
/// adapter that is trained further, where that matters. Throws UserError.
ModelSpec attended_model(const Config& config, const ModelConfig& model);

}  // namespace longspan
