// Qwen2, Qwen2.5 (arXiv 2407.10671): biases on the query, key and value projections only.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "longspan/config/user_error.h"
#include "longspan/models/family.h"

namespace longspan {
namespace {

void read_own_keys(const nlohmann::json& keys, const std::string& source, ModelConfig& config) {
  config.qkv_bias = true;
  const auto sliding = keys.find("use_sliding_window");
  if (sliding != keys.end() && sliding->is_boolean() && sliding->get<bool>()) {
    throw UserError(fmt::format(
        "{}: use_sliding_window: true is not supported, attention is always full. Set it to false "
        "to train with full attention.",
        source));
  }
}

}  // namespace

const Family kQwen2{"qwen2", "Qwen2ForCausalLM", false, 1e-6, 32768, read_own_keys};

}  // namespace longspan
