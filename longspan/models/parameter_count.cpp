#include "longspan/models/parameter_count.h"

#include <fmt/format.h>

#include "longspan/input/numbers.h"

namespace longspan {

int64_t parameter_count(const ModelConfig& config) {
  const int64_t D = config.hidden_size, I = config.intermediate_size, H = config.head_dim;
  const std::string what = fmt::format(
      "a model with vocab_size {}, hidden_size {}, intermediate_size {}, num_hidden_layers {} and "
      "{} "
      "heads of {} (num_key_value_heads {})",
      config.vocab_size, D, I, config.num_layers, config.num_heads, H, config.num_kv_heads);
  const auto product = [&](int64_t a, int64_t b) { return counted_product({a, b}, what); };
  const auto sum = [&](std::initializer_list<int64_t> terms) { return counted_sum(terms, what); };
  const int64_t queries = product(config.num_heads, H), keys = product(config.num_kv_heads, H);
  const int64_t matrices = product(
      D, sum({2 * queries, 2 * keys, product(3, I)}));  // attention's four and the MLP's three
  const int64_t biases = sum({config.qkv_bias ? queries + 2 * keys : 0, config.output_bias ? D : 0,
                              config.mlp_bias ? 2 * I + D : 0});
  const int64_t norms = 2 * D + (config.qk_norm ? 2 * H : 0);
  const int64_t layers = product(config.num_layers, sum({matrices, biases, norms}));
  const int64_t vocabulary =
      product(config.tie_word_embeddings ? 1 : 2, product(config.vocab_size, D));
  return sum({layers, vocabulary, D});
}

}  // namespace longspan
