// LoRA adapters (arXiv 2106.09685): names, shapes and beginnings of their matrices. What they
// compute is Linear's.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "longspan/models/decoder.h"

namespace longspan {

struct LoraShape {
  int64_t r = 8;  // the matrices' inner dim, as PEFT calls it
  double alpha = 16.0, dropout = 0.0;
  bool rank_stabilized = false;   // arXiv 2312.03732
  std::set<std::string> modules;  // last parts of layer names: q_proj, down_proj, ...

  /// What a product with the matrices is multiplied by: alpha / r, or alpha / sqrt(r).
  double scale() const;
};

/// The linear layers of a decoder block that can have an adapter: q_proj, k_proj, ..., down_proj.
const std::vector<std::string>& lora_modules();

/// Reads LLaMA-Factory's lora_target: a comma list of module names, or "all". Throws UserError for
/// a module that the model does not have.
std::set<std::string> lora_modules_from(const std::string& target);

/// Names and shapes of what new_lora_parameters makes, without making it.
std::vector<ParameterShape> lora_parameter_shapes(const ModelConfig& config,
                                                  const LoraShape& shape);

/// <layer>.lora_A.weight [R, I] and <layer>.lora_B.weight [O, R] of every chosen layer, fp32
/// leaves: A uniform within 1 / sqrt(I) as PEFT's Kaiming start gives it, the same for a seed on
/// every machine; B zero.
std::vector<NamedTensor> new_lora_parameters(const ModelConfig& config, const LoraShape& shape,
                                             uint64_t seed);

bool is_lora_parameter(const std::string& name);

/// weight += scale * B A for each adapter; the adapters' matrices are dropped from the list.
void merge_lora(std::vector<NamedTensor>& parameters, double scale);

}  // namespace longspan
