// The trained model as data: the model's config, and the spec with the attention that a run
// computes. No torch.
#pragma once

#include <string>

#include "longspan/models/model_config.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

/// Returns the model of `folder` in the form that the configuration trains. With the key
/// rope_scaling, positions are scaled for rows of cutoff_len tokens; otherwise positions are the
/// positions with which the model's adapters were trained. The result has the vision tower if a
/// data set has pictures. First checks the sizes against the folder's weights, so that a wrong
/// config.json cannot cause large allocations. Throws UserError.
ModelConfig model_config_for(const Config& config, const std::string& folder);
/// Returns `own`, a model in memory that replaces model_name_or_path, in the same form.
ModelConfig model_config_for(const Config& config, const ModelConfig& own);

/// Returns the spec of the model for the plan, the memory estimate and the traffic formula. The
/// result differs from model.spec in one case: the linear layer that expands latents has an adapter
/// with dropout. Ranks then exchange keys and values instead of latents (without_latent_exchange in
/// spec/lora_spec.h). If training continues an existing adapter, reads the adapter if necessary.
/// Throws UserError.
ModelSpec attended_model(const Config& config, const ModelConfig& model);

}  // namespace longspan
