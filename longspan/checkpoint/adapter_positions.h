// The positions that an adapter was trained with, where they differ from its base model's.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/model_config.h"

namespace longspan {

/// Writes folder/longspan_adapter.json with the keys of config.json that describe positions, where
/// these keys differ between `trained` and the model in `base_model`. Removes the file where the
/// keys are the same. (PEFT's adapter_config.json has no place for these keys.)
void save_positions(const std::string& folder, const ModelConfig& trained,
                    const std::string& base_model);

/// Returns `base` with the positions of the last adapter that has positions of its own. Later
/// adapters are trained on top of earlier adapters, so the last positions count. Throws UserError
/// for a broken file.
ModelConfig with_positions_of(const std::vector<std::string>& adapters, const ModelConfig& base);

/// Whether both configurations have the same positions.
bool same_positions(const ModelConfig& one, const ModelConfig& other);

}  // namespace longspan
