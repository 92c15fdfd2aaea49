// The trained model as data: its config, and its spec with the attention that a run computes. No
// torch.
#pragma once

#include <string>

#include "longspan/models/model_config.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

/// Returns a folder's model as the configuration trains it: with rope_scaling for rows of
/// cutoff_len tokens, otherwise with the positions of its adapters' training; with its vision tower
/// where a data set has pictures. Checks the sizes
/// against the folder's weights first, so that a wrong config.json cannot cause large allocations.
/// Throws UserError.
ModelConfig model_config_for(const Config& config, const std::string& folder);
/// The same for a model in memory, which replaces model_name_or_path.
ModelConfig model_config_for(const Config& config, const ModelConfig& own);

/// Returns the spec of the model for the plan, the memory estimate and the traffic formula. It
/// differs from the model's own if the linear layer that expands latents has an adapter with
/// dropout: ranks then exchange keys and values instead of latents (without_latent_exchange in
/// spec/lora_spec.h). If training continues an existing adapter, reads that adapter if necessary.
/// Throws UserError.
ModelSpec attended_model(const Config& config, const ModelConfig& model);

}  // namespace longspan
