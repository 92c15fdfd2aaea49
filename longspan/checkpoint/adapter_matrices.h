// The matrices of a LoRA adapter in PEFT's file, adapter_model.safetensors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "longspan/checkpoint/safetensors.h"
#include "longspan/checkpoint/stacked_adapters.h"
#include "longspan/models/model_config.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

/// What the file's names begin with, before those of the model's layers.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// Is it a value head's, which adapters of TRL and others may hold, by its name in the file? It is
/// not read: a value head has a file of its own.
bool is_of_value_head(std::string_view name);

/// Throws UserError unless the numbers are in floating point.
void require_floating(const SafetensorsFile& file, const SafetensorsEntry& entry);

/// All matrices of the file, in fp32 on the CPU. Adds the modules that have some to `shape`, whose
/// r they have: by the names in the file, since target_modules of the config may be a pattern.
/// `stacks`: those that the config in `config_path` names. Throws UserError where matrices are of
/// other layers or shapes than the model's, have another r, or come without their other matrix.
std::vector<NamedTensor> read_adapter_matrices(const SafetensorsFile& file,
                                               const std::vector<StackedAdapter>& stacks,
                                               const ModelConfig& config,
                                               const std::string& config_path, LoraShape& shape);

}  // namespace longspan
