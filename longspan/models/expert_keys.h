// Keys of config.json that families with mixtures of experts share. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/input/json_object.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// Reads a number of experts or of groups of experts, from 1 to 4096.
int64_t count_of_experts(const JsonObject& keys, const char* name);

/// Defaults of a family of sigmoid routers for keys that are missing in config.json.
struct SigmoidDefaults {
  double scale;  ///< routed_scaling_factor
  int64_t num_groups, groups_per_token;
  int64_t dense_layers;  ///< first_k_dense_replace
};

/// Returns the layers of a model with a sigmoid router and shared experts (DeepSeek-V3, arXiv
/// 2412.19437): the first first_k_dense_replace layers are `dense`, and the other layers have the
/// mixture of experts in place of the MLP. Sets model.extra_layers to the number of multi-token
/// prediction layers in the files (num_nextn_predict_layers). These layers are not trained.
std::vector<LayerSpec> with_sigmoid_experts(const JsonObject& keys, const SigmoidDefaults& defaults,
                                            const LayerSpec& dense, ModelSpec& model);

/// Throws UserError if the numbers of the mixture contradict each other.
void check_experts(const JsonObject& keys, const MixtureOfExpertsSpec& experts);

/// Differences between Qwen's families of mixtures of experts.
struct QwenExperts {
  bool normalises;        ///< default of norm_topk_prob
  bool has_gated_shared;  ///< has a shared expert, of shared_expert_intermediate_size
  MlpAdapters adapters;
};

/// Reads num_experts, moe_intermediate_size and the other keys of Qwen's experts.
MixtureOfExpertsSpec read_qwen_experts(const JsonObject& keys, const QwenExperts& kind);

/// Returns the pattern with Qwen's experts in place of the MLP, in the layers that
/// decoder_sparse_step and mlp_only_layers select (default: all layers).
std::vector<LayerSpec> with_qwen_experts(const JsonObject& keys, const QwenExperts& kind,
                                         const std::vector<LayerSpec>& pattern,
                                         const ModelSpec& model);

/// Throws UserError if the keys ask for layers without experts. For families whose layers all have
/// experts.
void refuse_dense_layers(const JsonObject& keys);

/// Returns router_aux_loss_coef if output_router_logits turns the auxiliary loss on.
std::optional<double> read_auxiliary_loss(const JsonObject& keys);

}  // namespace longspan
