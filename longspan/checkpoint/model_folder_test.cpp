#include "longspan/checkpoint/model_folder.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/base/user_error.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/models/model_config.h"
#include "longspan/models/parameter_count.h"
#include "longspan/testing/bytes_read.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/small_model.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

testing::SmallModel small_model() {
  testing::SmallModel config;
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

TEST_CASE("model folder: layers and sizes are those of the weights before anything is made") {
  const testing::TemporaryFolder folder;
  ModelConfig config = small_model().config();
  config.json = R"({"model_type": "qwen2"})";
  save_model_folder(folder.path, config, random_parameters(config, 1, at::kFloat), at::kFloat, "");
  CHECK_NOTHROW(check_model_folder(folder.path, config));
  const auto complaint = [&](ModelConfig lying) -> std::string {
    AllocationCounter counter(AllocationCounter::Of::kProcess);
    try {
      load_parameters(folder.path, lying, at::kFloat);
    } catch (const UserError& error) {
      CHECK(counter.peak_bytes() == 0);
      return error.what();
    }
    return "(accepted)";
  };
  config.spec.num_layers = 10'000'000;
  CHECK(complaint(config).find("num_hidden_layers 10000000, and the weights have 2 layers") !=
        std::string::npos);
  config.spec.num_layers = 2;
  config.spec.hidden_size = 65;
  CHECK(complaint(config).find("[1000, 64] but config.json asks for [1000, 65]") !=
        std::string::npos);
  config.spec.hidden_size = 64;
  config.spec.vocab_size = 1 << 30;
  CHECK(complaint(config).find("[1000, 64] but config.json asks for [1073741824, 64]") !=
        std::string::npos);
}

TEST_CASE("model folder: runs of a parameter are those of the whole, and only they are read") {
  const testing::TemporaryFolder folder;
  ModelConfig config = small_model().config();
  config.json = R"({"model_type": "qwen2"})";
  save_model_folder(folder.path, config, random_parameters(config, 1, at::kFloat), at::kFloat, "");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const ParameterSource& source : parameter_sources(folder.path, config, dtype)) {
      const at::Tensor whole = source.make().flatten();
      const int64_t begin = whole.numel() / 3, end = whole.numel() - 1;
      CHECK(at::equal(source.make.run(begin, end), whole.slice(0, begin, end)));
      if (const auto before = testing::bytes_read()) {
        source.make.run(begin, begin + 10);
        CHECK(*testing::bytes_read() - *before < 10 * 4 + testing::kOwnBytes);
      }
    }
  }
}

TEST_CASE("parameter count: that of the list, or refused") {
  for (const bool tied : {false, true}) {
    testing::SmallModel small = small_model();
    small.tied_head = tied;
    small.qk_norm = small.output_bias = small.mlp_bias = !tied;
    ModelSpec model = small.spec();
    int64_t listed = 0;
    for (const auto& [name, shape] : testing::parameter_shapes(model)) {
      int64_t size = 1;
      for (const int64_t dim : shape) size *= dim;
      listed += size;
    }
    CHECK(parameter_count(model) == listed);
    model.num_layers = int64_t{1} << 50;
    CHECK_THROWS_WITH_AS(parameter_count(model),
                         doctest::Contains("num_hidden_layers 1125899906842624"), UserError);
  }
}

TEST_CASE("random parameters: the seed decides, the numbers are normal") {
  const ModelConfig config = small_model().config();
  const auto a = random_parameters(config, 1, at::kFloat);
  const auto b = random_parameters(config, 1, at::kFloat);
  const auto c = random_parameters(config, 2, at::kFloat);
  for (size_t i = 0; i < a.size(); ++i) {
    CHECK(at::equal(a[i].tensor, b[i].tensor));
    const bool constant = a[i].name.ends_with("norm.weight") || a[i].name.ends_with(".bias");
    CHECK(at::equal(a[i].tensor, c[i].tensor) == constant);
  }
  const auto embedding = a[0].tensor.to(at::kDouble) / config.spec.initializer_range;
  REQUIRE(a[0].name == "model.embed_tokens.weight");
  // 64,000 draws: the standard error is 1 / sqrt(64000) = 0.004 for the mean and sqrt(96 / 64000) =
  // 0.04 for the fourth moment. Tolerances are five standard errors.
  CHECK(std::abs(embedding.mean().item<double>()) < 0.02);
  CHECK(std::abs(embedding.square().mean().item<double>() - 1) < 0.03);
  CHECK(std::abs(embedding.pow(4).mean().item<double>() - 3) < 0.2);
  CHECK(embedding.abs().max().item<double>() > 3.5);
  // Neighbours, and the two numbers of a Box-Muller pair, are uncorrelated.
  const auto flat = embedding.flatten();
  const auto product = flat.slice(0, 0, -1) * flat.slice(0, 1);
  CHECK(std::abs(product.mean().item<double>()) < 0.02);
}

}  // namespace
}  // namespace longspan
