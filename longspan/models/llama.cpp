// Llama 2, 3, 3.1, 3.2, 3.3 (arXiv 2307.09288, 2407.21783): no biases unless the file says so.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/config/user_error.h"
#include "longspan/models/family.h"

namespace longspan {
namespace {

void read_own_keys(const nlohmann::json& keys, const std::string& source, ModelConfig& config) {
  const auto flag = [&](const char* name) {
    const auto value = keys.find(name);
    if (value == keys.end() || value->is_null()) return false;
    if (!value->is_boolean()) {
      throw UserError(fmt::format("{}: {} must be true or false.", source, name));
    }
    return value->get<bool>();
  };
  config.qkv_bias = config.output_bias = flag("attention_bias");
  config.mlp_bias = flag("mlp_bias");
}

}  // namespace

const Family kLlama{"llama", "LlamaForCausalLM", false, 1e-6, 2048, read_own_keys};

}  // namespace longspan
