// The trained model as data: its config, and the attention of each layer. No torch.
#pragma once

#include <string>

#include "longspan/models/model_config.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

/// Returns a folder's model as the configuration trains it: with rope_scaling for rows of
/// cutoff_len tokens, otherwise with the positions of its adapters' training. Checks the sizes
/// against the folder's weights first, so that a wrong config.json cannot cause large allocations.
/// Throws UserError.
ModelConfig model_config_for(const Config& config, const std::string& folder);
/// The same for a model in memory, in the place of model_name_or_path.
ModelConfig model_config_for(const Config& config, const ModelConfig& own);

/// Returns the model as its attentions see it in training, for the plan, the memory estimate and
/// the traffic formula. If an adapter with dropout is on the layer that expands latents, latents do
/// not travel (without_latent_exchange in spec/lora_spec.h). Reads the adapter that is trained
/// further if necessary. Throws UserError.
ModelSpec attended_model(const Config& config, const ModelConfig& model);

}  // namespace longspan
