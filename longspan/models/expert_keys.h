// Keys of config.json that families with mixtures of experts have in common. No torch.
#pragma once

#include "longspan/input/json_object.h"
#include "longspan/models/model_config.h"

namespace longspan {

/// A number of experts, of equal parts of them, or the like: positive, and no more than is ever
/// made.
int64_t count_of_experts(const JsonObject& keys, const char* name);

/// Which layers have experts, for layers that are not all alike: a list of all layers, of which
/// there are thus few. Throws UserError otherwise.
std::vector<bool> each_layer(const JsonObject& keys, const ModelConfig& config,
                             bool (*has_experts)(const JsonObject& keys, int64_t layer));

/// What a family of routers with sigmoids has where its config.json says nothing.
struct SigmoidDefaults {
  double scale;  ///< routed_scaling_factor
  int64_t num_groups, groups_per_token;
  int64_t dense_layers;  ///< first_k_dense_replace
};

/// Routed experts in groups, chosen by sigmoids and a correction, beside shared ones, in all layers
/// but the first first_k_dense_replace (DeepSeek-V3, arXiv 2412.19437); and how many layers files
/// hold behind the model's for further tokens, which no loss here trains
/// (num_nextn_predict_layers). Sets experts, has_experts and extra_layers.
void read_sigmoid_experts(const JsonObject& keys, const SigmoidDefaults& defaults,
                          ModelConfig& config);

/// Throws UserError where the numbers of the mixture do not fit each other.
void check_experts(const JsonObject& keys, const MixtureOfExpertsSpec& experts);

/// What sets Qwen's families of mixtures of experts apart.
struct QwenExperts {
  bool normalises;        ///< norm_topk_prob where the file has none
  bool may_be_dense;      ///< decoder_sparse_step and mlp_only_layers say which layers have experts
  bool has_gated_shared;  ///< an expert for all tokens, of shared_expert_intermediate_size
};

/// Reads num_experts, moe_intermediate_size and what else Qwen's configs say of their experts.
void read_qwen_experts(const JsonObject& keys, const QwenExperts& kind, ModelConfig& config);

}  // namespace longspan
