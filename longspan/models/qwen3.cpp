// Qwen3 (arXiv 2505.09388), dense: an RMSNorm over each query and key head, no biases by default.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/config/user_error.h"
#include "longspan/models/family.h"

namespace longspan {
namespace {

void read_own_keys(const nlohmann::json& keys, const std::string& source, ModelConfig& config) {
  const auto set = [&](const char* name) {
    const auto value = keys.find(name);
    return value != keys.end() && value->is_boolean() && value->get<bool>();
  };
  if (!keys.contains("head_dim")) config.head_dim = 128;  // transformers' default for this family
  config.qk_norm = true;
  config.qkv_bias = config.output_bias = set("attention_bias");
  if (set("use_sliding_window")) {
    throw UserError(fmt::format(
        "{}: use_sliding_window: true is not supported, attention is always full. Set it to false "
        "to train with full attention.",
        source));
  }
}

}  // namespace

const Family kQwen3{"qwen3", "Qwen3ForCausalLM", false, 1e-6, 32768, read_own_keys};

}  // namespace longspan
