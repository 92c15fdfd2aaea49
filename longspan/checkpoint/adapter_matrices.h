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

/// Prefix of names in PEFT's file, before the model's names of layers.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// Whether this name in the file belongs to a value head. Adapter files of TRL and other programs
/// may hold a value head. Longspan does not read these tensors, since its value heads have their
/// own file.
bool is_of_value_head(std::string_view name);

/// Throws UserError unless the numbers are floating point.
void require_floating(const SafetensorsFile& file, const SafetensorsEntry& entry);

/// Returns all matrices of the file, in fp32 on the CPU. Adds the modules that have an adapter to
/// `shape`. The rank of the matrices must be shape.r. The modules are taken from the names in the
/// file, since target_modules in the adapter's config may be a pattern. `config`: the model's
/// config. `config_path`: path of the adapter's config. `stacks`: the adapters of stacked tensors
/// that the adapter's config names (checkpoint/stacked_adapters.h). Throws UserError if a matrix
/// belongs to a layer that the model lacks, if a matrix has a wrong shape or rank, or if A or B is
/// missing.
std::vector<NamedTensor> read_adapter_matrices(const SafetensorsFile& file,
                                               const std::vector<StackedAdapter>& stacks,
                                               const ModelConfig& config,
                                               const std::string& config_path, LoraShape& shape);

}  // namespace longspan
