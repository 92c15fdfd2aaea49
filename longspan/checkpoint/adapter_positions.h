// The positions that an adapter was trained with, where they are not its base model's.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/model_config.h"

namespace longspan {

/// Writes folder/longspan_adapter.json with the keys of config.json that say how positions are
/// stretched, where those of `trained` are not those of the model in `base_model`; else removes
/// such a file. (PEFT's adapter_config.json has no place for them.)
void save_positions(const std::string& folder, const ModelConfig& trained,
                    const std::string& base_model);

/// `base` with the positions of the last of these adapters that has some of its own, as the later
/// ones are trained on top of the earlier. Throws UserError: a broken file.
ModelConfig with_positions_of(const std::vector<std::string>& adapters, const ModelConfig& base);

/// Are the positions of both configurations the same?
bool same_positions(const ModelConfig& one, const ModelConfig& other);

}  // namespace longspan
