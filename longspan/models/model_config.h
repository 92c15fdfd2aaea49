// The architecture, as config.json of a Hugging Face folder says it. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

/// rope_scaling / rope_parameters of config.json.
struct RopeScaling {
  std::string type = "default";  // default | linear | llama3 | yarn
  double factor = 1.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;            // llama3
  int64_t original_max_position_embeddings = 0;                    // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;                        // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn
  bool truncate = true;                                            // yarn
};

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
  bool qk_norm = false;  // RMSNorm of each query and key head
  /// The file's own text, so that saving writes back every key, known here or not.
  std::string json;
};

/// Reads folder/config.json (or the file itself). Throws UserError: missing, broken JSON (line),
/// unsupported model_type, activation or rope type (names what is supported).
ModelConfig load_model_config(const std::string& folder_or_file);

}  // namespace longspan
