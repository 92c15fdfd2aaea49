// LoRA adapters (arXiv 2106.09685) as data: the adapted linear layers and the matrices. No torch.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan {

struct LoraShape {
  int64_t r = 8;  // rank of the adapter, named as in PEFT
  double alpha = 16.0, dropout = 0.0;
  bool rank_stabilized = false;   // arXiv 2312.03732
  bool decomposed = false;        // with magnitudes: DoRA, arXiv 2402.09353
  std::set<std::string> modules;  // linear layers (ParameterSpec::lora_target)
  /// The parts of the model in which the linear layers of `modules` have adapters.
  std::set<ModelPart> parts = {ModelPart::kLanguage};
  /// Ends of names of modules that are trained and saved whole beside the adapter (PEFT's
  /// modules_to_save).
  std::set<std::string> whole_modules = {};

  bool adapts(const ParameterSpec& parameter) const {
    return parts.contains(parameter.part) && modules.contains(parameter.lora_target);
  }

  /// True if the parameter, one of the model's own, is trained and saved whole.
  bool trains_whole(const ParameterSpec& parameter) const;

  /// Factor of the adapter's output x A^T B^T: alpha / r, or alpha / sqrt(r) if rank_stabilized.
  double scale() const;
};

/// Parses LLaMA-Factory's lora_target: a comma list of the model's linear layers (lora_targets), or
/// "all": all linear layers of `parts`, except linear layers whose names occur only in a projector.
/// Throws UserError for names that no layer of `parts` has.
std::set<std::string> lora_modules_from(const std::string& target, const ModelSpec& model,
                                        const std::set<ModelPart>& parts = {ModelPart::kLanguage});

/// Parses LLaMA-Factory's additional_target, a comma list of ends of module names. Throws UserError
/// for a name that no module has, and for modules other than embedding, head and norms.
std::set<std::string> whole_modules_from(const std::string& target, const ModelSpec& model);

/// Whether one of the modules is an embedding that is the head as well.
bool trains_tied_head(const ModelSpec& model, const std::set<std::string>& whole_modules);

/// Throws UserError if PEFT cannot load an adapter of this shape. The reason: with transformers 5,
/// PEFT stacks the adapters of experts into adapters of stacked parameters.
void require_in_peft(const ModelSpec& model, const LoraShape& shape);

/// Returns the modules that have adapters in only some MLPs of the model
/// (ParameterSpec::passed_over_target); empty without experts.
std::vector<std::string> passed_over(const ModelSpec& model, const std::set<std::string>& modules);

/// Returns the model with the attention specs of training. If the linear layer that expands latents
/// has an adapter with dropout, the specs have no latent_dim, so that ranks do not exchange
/// latents: each process knows only the dropout of its own tokens.
ModelSpec without_latent_exchange(ModelSpec model, const LoraShape& shape);

/// Returns the full names of modules that have no adapter but share their short name with an
/// adapted linear layer: linear layers of other parts, and the patch embedding. Empty for a model
/// of texts alone.
std::vector<std::string> excluded_linears(const ModelSpec& model, const LoraShape& shape);

/// Returns the matrices of an adapter of this shape: A and B of each adapted linear layer, and its
/// magnitudes if the adapter is decomposed.
/// Projections that share an adapter have one A and one B.
std::vector<ParameterSpec> lora_parameters_of(const ModelSpec& model, const LoraShape& shape);

}  // namespace longspan
