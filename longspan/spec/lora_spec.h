// LoRA adapters (arXiv 2106.09685) as data: which linear layers have one, and its matrices. No
// torch.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan {

struct LoraShape {
  int64_t r = 8;  // the matrices' inner dim, as PEFT calls it
  double alpha = 16.0, dropout = 0.0;
  bool rank_stabilized = false;   // arXiv 2312.03732
  std::set<std::string> modules;  // linear layers (ParameterSpec::lora_target)

  /// The factor of what an adapter adds, scale x A^T B^T: alpha / r, or alpha / sqrt(r).
  double scale() const;
};

/// Reads LLaMA-Factory's lora_target: a comma list of the model's linear layers (lora_targets), or
/// "all" of them. Throws UserError for one that the model does not have.
std::set<std::string> lora_modules_from(const std::string& target, const ModelSpec& model);

/// Throws UserError where PEFT cannot load an adapter of this shape: on transformers 5 it stacks
/// adapters of experts into those of the stacked parameters.
void require_in_peft(const ModelSpec& model, const LoraShape& shape);

/// The modules whose adapters some MLPs of the model have and others have not
/// (ParameterSpec::passed_over_target); none in a model without experts.
std::vector<std::string> passed_over(const ModelSpec& model, const std::set<std::string>& modules);

/// The model as attentions see it in training: where an adapter with dropout is on the layer that
/// makes keys and values of latents, latents do not travel, since each process knows the dropout of
/// its own tokens alone.
ModelSpec with_latents_kept(ModelSpec model, const LoraShape& shape);

/// The matrices of an adapter of this shape, A and B of one linear layer after the other; once of
/// projections that share an adapter.
std::vector<ParameterSpec> lora_parameters_of(const ModelSpec& model, const LoraShape& shape);

}  // namespace longspan
