// LoRA adapters on disk, in PEFT's layout.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

struct Adapter {
  LoraShape shape;
  std::vector<NamedTensor> parameters;  // a loaded adapter's: fp32, on the CPU
};

/// Returns the model with its vision tower if one of the adapters has matrices of the tower. Throws
/// UserError for a missing or broken file.
ModelConfig with_adapted_tower(const std::vector<std::string>& adapters, const ModelConfig& config);

/// Returns the model with the vocabulary of the last adapter that holds a larger embedding or head.
/// Throws UserError for a broken file.
ModelConfig with_adapted_vocabulary(const std::vector<std::string>& adapters,
                                    const ModelConfig& config);

/// Reads adapter_config.json and adapter_model.safetensors. Throws UserError where files are
/// missing or broken, where the adapter is not plain LoRA (require_plain_lora), or where matrices
/// do not fit the model.
Adapter load_adapter(const std::string& folder, const ModelConfig& config);

/// Returns the number of a value head's tensors in the adapter's file (is_of_value_head), which are
/// not read. Throws UserError as load_adapter does.
int64_t num_value_head_tensors(const std::string& folder);

/// Writes adapter_config.json and adapter_model.safetensors, and copies the tokenizer files of
/// `base_model`. PEFT can load the adapter onto the model in `base_model`, which has this config.
/// `start`: PEFT's name of an initialization that changes the model's weights; empty: none.
void save_adapter(const std::string& folder, const ModelConfig& config, const Adapter& adapter,
                  at::ScalarType dtype, const std::string& base_model,
                  const std::string& start = "");

/// Returns weight and bias of a reward model's value head; empty without a value head.
std::vector<NamedTensor> value_head_among(const std::vector<NamedTensor>& parameters,
                                          const ParameterTable& specs);
/// Read and write value_head.safetensors, in fp32. An empty vector stands for no value head, and is
/// not written.
std::vector<NamedTensor> load_value_head(const std::string& folder, const ModelConfig& config);
void save_value_head(const std::string& folder, const std::vector<NamedTensor>& head);

}  // namespace longspan
