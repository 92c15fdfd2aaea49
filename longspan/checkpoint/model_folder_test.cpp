#include "longspan/checkpoint/model_folder.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/models/model_config.h"

namespace longspan {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.model_type = "qwen2";
  config.vocab_size = 1000;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.qkv_bias = true;
  return config;
}

TEST_CASE("random parameters: the seed decides, the numbers are normal") {
  const auto config = small_config();
  const auto a = random_parameters(config, 1, at::kFloat);
  const auto b = random_parameters(config, 1, at::kFloat);
  const auto c = random_parameters(config, 2, at::kFloat);
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(at::equal(a[i].tensor, b[i].tensor));
    const bool constant = a[i].name.ends_with("norm.weight") || a[i].name.ends_with(".bias");
    CHECK(at::equal(a[i].tensor, c[i].tensor) == constant);
  }
  const auto embedding = a[0].tensor.to(at::kDouble) / config.initializer_range;
  REQUIRE(a[0].name == "model.embed_tokens.weight");
  // 64,000 draws: a standard error of 1 / sqrt(64000) = 0.004 for the mean, sqrt(96 / 64000) = 0.04
  // for the fourth moment. Five of them.
  CHECK(std::abs(embedding.mean().item<double>()) < 0.02);
  CHECK(std::abs(embedding.square().mean().item<double>() - 1) < 0.03);
  CHECK(std::abs(embedding.pow(4).mean().item<double>() - 3) < 0.2);
  CHECK(embedding.abs().max().item<double>() > 3.5);
  // Neighbours and the two of a pair are not correlated.
  const auto flat = embedding.flatten();
  const auto product = flat.slice(0, 0, -1) * flat.slice(0, 1);
  CHECK(std::abs(product.mean().item<double>()) < 0.02);
}

}  // namespace
}  // namespace longspan
