// The architecture, as config.json of a Hugging Face folder says it. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "longspan/spec/model_spec.h"

namespace longspan {

struct ModelConfig {
  std::string model_type;    // qwen2 | qwen3 | llama
  std::string architecture;  // e.g. Qwen2ForCausalLM
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6, rope_theta = 10000.0, initializer_range = 0.02;
  RopeScaling rope;
  bool tie_word_embeddings = false;
  /// pad_token_id, whose input embedding gets no gradient, as in transformers (the padding_idx of
  /// nn.Embedding). A tied head's gradient it gets.
  std::optional<int64_t> padding_token;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;      // RMSNorm of each query and key head
  bool output_gate = false;  // SelfAttentionSpec::output_gate
  bool has_sinks = false;    // AttentionSpec::has_sinks
  NormKind norm_kind = NormKind::kWeight;
  std::optional<int64_t> rotary_dim;  // RotarySpec::dim
  RotaryPairs rotary_pairs = RotaryPairs::kHalves;
  /// AttentionSpec::window of the layers that are in windowed_layers, which say it for one layer
  /// after the other, and again from the first; empty: of every layer.
  std::optional<int64_t> window;
  std::vector<bool> windowed_layers;
  std::optional<RotarySpec> window_rotary;  // of those layers; none: as in the others
  std::optional<double> attention_scale;    // AttentionSpec::scale; none: 1 / sqrt(head_dim)
  GateActivation activation = Swiglu{};
  OutputNorms output_norms = OutputNorms::kNone;
  bool qkv_stored_as_one = false;      // SelfAttentionSpec::stored_as_one
  bool gate_up_stored_as_one = false;  // GatedMlpSpec::stored_as_one
  double embedding_scale = 1.0;        // ModelSpec::embedding_scale
  /// In the place of self-attention in all layers. Its rotation and scale follow from the keys
  /// above.
  std::optional<LatentAttentionSpec> latent_attention;
  /// Of models that have such layers: which layers of the pattern that repeats they are.
  std::optional<GatedDeltaNetSpec> gated_delta_net;
  std::vector<bool> recurrent_layers;
  /// In the place of the MLP, in each layer i for which has_experts[i % has_experts.size()].
  std::optional<MixtureOfExpertsSpec> experts;
  std::vector<bool> has_experts;
  /// Layers behind these in the files that are no part of the model (ModelSpec::extra_layers).
  int64_t extra_layers = 0;
  /// router_aux_loss_coef, where output_router_logits asks for the auxiliary loss.
  std::optional<double> router_aux_loss_coef;
  /// quantization_config says that matrices are stored in MXFP4 (checkpoint/mxfp4.h). They are read
  /// as plain numbers, and saved as such without that key.
  bool stored_in_mxfp4 = false;
  /// The file's own text, so that saving writes back every key, known here or not.
  std::string json;
};

/// What the model is made of.
ModelSpec spec_of(const ModelConfig& config);

/// Reads folder/config.json (or the file itself). Throws UserError: missing, broken JSON (line),
/// unsupported model_type, activation or rope type (names what is supported).
ModelConfig load_model_config(const std::string& folder_or_file);

}  // namespace longspan
