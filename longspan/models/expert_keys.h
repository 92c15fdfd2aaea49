// Keys of config.json that families with mixtures of experts have in common. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "longspan/input/json_object.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

/// A number of experts, of equal parts of them, or the like: positive, and no more than is ever
/// made.
int64_t count_of_experts(const JsonObject& keys, const char* name);

/// What a family of routers with sigmoids has where its config.json says nothing.
struct SigmoidDefaults {
  double scale;  ///< routed_scaling_factor
  int64_t num_groups, groups_per_token;
  int64_t dense_layers;  ///< first_k_dense_replace
};

/// A pattern of layers like `dense`, all but the first first_k_dense_replace with routed experts in
/// the place of the MLP, chosen in a few sets by sigmoids and a correction, beside shared ones
/// (DeepSeek-V3, arXiv 2412.19437). Sets model.extra_layers: how many layers files hold behind the
/// model's for further tokens, which no loss here trains (num_nextn_predict_layers).
std::vector<LayerSpec> with_sigmoid_experts(const JsonObject& keys, const SigmoidDefaults& defaults,
                                            const LayerSpec& dense, ModelSpec& model);

/// Throws UserError where the numbers of the mixture do not fit each other.
void check_experts(const JsonObject& keys, const MixtureOfExpertsSpec& experts);

/// What sets Qwen's families of mixtures of experts apart.
struct QwenExperts {
  bool normalises;        ///< norm_topk_prob where the file has none
  bool has_gated_shared;  ///< an expert for all tokens, of shared_expert_intermediate_size
  MlpAdapters adapters;
};

/// Reads num_experts, moe_intermediate_size and what else Qwen's configs say of their experts.
MixtureOfExpertsSpec read_qwen_experts(const JsonObject& keys, const QwenExperts& kind);

/// The pattern of the model's layers, with these experts in the place of the MLP in all layers, or
/// in those that decoder_sparse_step and mlp_only_layers leave.
std::vector<LayerSpec> with_qwen_experts(const JsonObject& keys, const QwenExperts& kind,
                                         const std::vector<LayerSpec>& pattern,
                                         const ModelSpec& model);

/// Of a family all of whose layers have experts: refuses keys of its relatives that ask for others.
void refuse_dense_layers(const JsonObject& keys);

/// router_aux_loss_coef, where output_router_logits asks for the auxiliary loss.
std::optional<double> read_auxiliary_loss(const JsonObject& keys);

}  // namespace longspan
