// LoRA adapters on disk, in PEFT's own layout.
#pragma once

#include <string>
#include <vector>

#include "longspan/models/model_config.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

struct Adapter {
  LoraShape shape;
  std::vector<NamedTensor> parameters;  // fp32, on the CPU
};

/// adapter_config.json and adapter_model.safetensors. Throws UserError: files missing or broken, an
/// adapter that is not known to be plain LoRA (require_plain_lora), matrices that do not fit the
/// model.
Adapter load_adapter(const std::string& folder, const ModelConfig& config);

/// How many tensors of the adapter's file are a value head's, and not read (is_of_value_head).
/// Throws UserError as load_adapter does.
int64_t num_value_head_tensors(const std::string& folder);

/// Both files, of the adapter's matrices; PEFT loads them onto the model of this config in
/// `base_model`, whose tokenizer files are copied.
void save_adapter(const std::string& folder, const ModelConfig& config, const LoraShape& shape,
                  const std::vector<NamedTensor>& adapter, at::ScalarType dtype,
                  const std::string& base_model);

/// Weight and bias of a reward model's value head; empty where there is none.
std::vector<NamedTensor> value_head_among(const std::vector<NamedTensor>& parameters,
                                          const ParameterTable& specs);
/// value_head.safetensors, fp32; empty, and no file, where there is no value head.
std::vector<NamedTensor> load_value_head(const std::string& folder, const ModelConfig& config);
void save_value_head(const std::string& folder, const std::vector<NamedTensor>& head);

}  // namespace longspan
