// Models of texts and pictures: their language model is trained alone, and saving copies the other
// parts of the model from its folder unchanged. No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "longspan/models/model_config.h"

namespace longspan {

/// Is it the config of such a model (CompositeKind)? Everything in it but its name and its text is
/// of the language model.
bool is_composite(const ModelConfig& config);

/// Of a whole config.json: the language model's keys, text_config for such a model.
nlohmann::ordered_json& language_keys(nlohmann::ordered_json& config);
const nlohmann::json& language_keys(const nlohmann::json& config);

/// "bfloat16": the dtype that a whole config.json names; empty where it names none.
std::string dtype_in(const nlohmann::json& config);

/// What files call a tensor that the language model calls `name` (ParameterSpec::stored_as):
/// model.language_model.layers.0... for model.layers.0... in the files of Qwen's (CompositeNames).
std::string name_in_files(const ModelConfig& config, const std::string& name);
/// The other way round, of the files' name `stored`. Files of a language model may have either
/// name, since transformers saves it under those of the model that it was loaded from.
std::string name_in_language_model(const ModelConfig& config, const std::string& stored);

/// "vision_tower.*, multi_modal_projector.*": the tensors of the other parts of such a model.
std::string describe_copied_tensors(const ModelConfig& config);

/// Does `stored`, a name of the files, belong to a part of such a model that is saved as it was
/// read?
bool is_copied_tensor(const ModelConfig& config, const std::string& stored);

}  // namespace longspan
