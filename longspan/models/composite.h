// Composite models: models of text and images. If rows have no pictures, only the language model is
// trained, and saving copies the tensors of the other parts from the model's folder unchanged. No
// torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "longspan/models/family.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// True if `config` belongs to a composite model. In such a config, all fields except `json` and
/// the names describe the language model.
bool is_composite(const ModelConfig& config);

/// Returns the keys of the language model in a whole config.json: text_config for a composite
/// model, otherwise `config` itself.
nlohmann::ordered_json& language_keys(nlohmann::ordered_json& config);
const nlohmann::json& language_keys(const nlohmann::json& config);

/// True if rows of the model may have pictures.
bool takes_pictures(const ModelConfig& config);
/// Returns the model with its vision tower, for rows with pictures. The spec then includes the
/// tower's parameters, and saving does not copy these parameters. Throws UserError if the family's
/// tower is not supported.
ModelConfig with_pictures(const ModelConfig& config);
/// Returns the tokens that stand for pictures. `config`: the config of a composite model.
PictureTokens picture_tokens(const ModelConfig& config);

/// Returns the dtype that a whole config.json names, e.g. "bfloat16"; empty if config.json names no
/// dtype.
std::string dtype_in(const nlohmann::json& config);

/// Returns the name that the model's files give to the language model's tensor `name`
/// (ParameterSpec::stored_as), e.g. model.language_model.layers.0... for model.layers.0... in
/// Qwen's files (CompositeNames).
std::string name_in_files(const ModelConfig& config, const std::string& name);
/// The inverse of name_in_files(): returns the language model's name of the files' tensor `stored`.
/// Files of a language model alone may use either name, because transformers keeps the composite
/// model's names if the language model was loaded from a composite model.
std::string name_in_language_model(const ModelConfig& config, const std::string& stored);

/// Returns the name that an adapter's file gives to the matrix `name`. The name follows
/// transformers' module of the whole composite model if the tower is part of the spec, or if
/// transformers has no class for the language model alone. The inverse is name_in_language_model().
std::string name_in_adapter(const ModelConfig& config, const std::string& name);

/// `stored`: the name of a matrix in an adapter's file. True if the matrix is on a module of the
/// vision tower, and rows of the model may have pictures.
bool is_tower_module(const ModelConfig& config, const std::string& stored);

/// True if saving copies the tensors of the vision parts, because the spec has none of these
/// tensors.
bool copies_vision(const ModelConfig& config);

/// Returns the name patterns of the copied tensors, e.g. "vision_tower.*, multi_modal_projector.*".
std::string describe_copied_tensors(const ModelConfig& config);

/// True if `stored`, a tensor name in the files, belongs to a part that saving copies unchanged.
bool is_copied_tensor(const ModelConfig& config, const std::string& stored);

}  // namespace longspan
