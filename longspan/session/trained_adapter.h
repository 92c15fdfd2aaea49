// Checks of the adapter that a run trains: a new one, or one of adapter_name_or_path.
#pragma once

#include "longspan/models/model_config.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

struct Config;

/// Throws UserError if the run cannot train a new adapter of the configuration's shape: also if the
/// adapter does not fit this machine's memory.
void require_new_adapter(const Config& config, const ModelConfig& model);

/// Throws UserError if the run adds rows to the embedding and the head, and an adapter of this
/// shape would not hold them.
void require_further_rows(const Config& config, const ModelConfig& model, const LoraShape& adapter);

/// Throws UserError unless the configuration's keys match the existing adapter.
void require_same_shape(const Config& config, const ModelSpec& model, const LoraShape& adapter);

/// Throws UserError if the run cannot use the existing adapter, the last of adapter_name_or_path.
void require_adapter(const Config& config, const ModelConfig& model, const LoraShape& adapter);

}  // namespace longspan
