#include "longspan/models/parameter_count.h"

#include <fmt/format.h>

namespace longspan {

int64_t parameter_count(const ModelConfig& config) {
  const int64_t D = config.hidden_size, I = config.intermediate_size, H = config.head_dim;
  const std::string what = fmt::format(
      "a model with vocab_size {}, hidden_size {}, intermediate_size {}, num_hidden_layers {} and "
      "{} "
      "heads of {} (num_key_value_heads {}){}",
      config.vocab_size, D, I, config.num_layers, config.num_heads, H, config.num_kv_heads,
      config.experts ? fmt::format(", and {} experts of {}", config.experts->num_experts,
                                   config.experts->expert_size)
                     : "");
  return num_parameters_of(spec_of(config), what);
}

}  // namespace longspan
