// Dropout in a value head.
#include "longspan/objectives/document_scores.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/parameter_specs.h"
#include "longspan/testing/small_model.h"

namespace longspan {
namespace {

/// A model whose layer adds nothing: hidden states are the normalized embeddings, each element +1
/// or -1.
struct Signs {
  static constexpr int64_t kDim = 64, kDocuments = 40;
  testing::SmallModel config;
  std::unique_ptr<SequenceParallel> attention = make_local(cpu_block_kernel());
  std::unique_ptr<Decoder> model;
  at::Tensor weight_1D = at::randn({1, kDim}, at::kDouble),
             bias_1 = at::full({1}, 0.5, at::kDouble);
  Batch row;

  explicit Signs(at::ScalarType dtype = at::kDouble) {
    at::manual_seed(3);
    config.vocab_size = kDocuments;
    config.hidden_size = kDim;
    config.intermediate_size = 8;
    config.num_layers = config.num_heads = config.num_kv_heads = 1;
    config.head_dim = 4;
    config.tied_head = true;
    config.norm_eps = 0.0;
    std::vector<NamedTensor> parameters;
    for (const auto& [name, shape] : testing::parameter_shapes(config.spec())) {
      at::Tensor values = at::zeros(shape, at::kDouble);
      if (name.ends_with("norm.weight")) values.fill_(1.0);
      if (name.find("embed_tokens") != std::string::npos) values = at::randn_like(values).sign();
      parameters.push_back({name, values.to(dtype)});
    }
    DecoderOptions options;
    options.compute_dtype = dtype;
    model = std::make_unique<Decoder>(config.spec(), parameters, *attention, options);
    std::vector<Sample> samples;
    for (int32_t i = 0; i < kDocuments; ++i) samples.push_back({{i, i}, {-100, i}});
    std::vector<const Sample*> pointers;
    for (const Sample& sample : samples) pointers.push_back(&sample);
    row = with_labels_at_ends(collate(pointers), kDocuments);
  }

  at::Tensor values(double dropout, const Batch& batch) const {
    return document_values(*model, {weight_1D, bias_1, dropout}, batch, kDocuments,
                           [](const at::Tensor& x) { return x; });
  }
};

TEST_CASE("value head: dropout in training alone, unbiased, by token and column") {
  const Signs test;
  const at::Tensor without_D = test.values(0.0, test.row);
  CHECK(at::equal(test.values(0.25, test.row), without_D));  // no seed: evaluation
  test.model->set_dropout_seed(7);
  CHECK(at::equal(test.values(0.0, test.row), without_D));
  const at::Tensor dropped_D = test.values(0.25, test.row);
  CHECK(!at::allclose(dropped_D, without_D));
  CHECK(at::equal(test.values(0.25, test.row), dropped_D));
  // Every second document is on another process, and keeps the same elements.
  const Batch mine = shard(test.row, [&] {
    const std::vector<int64_t> lengths(Signs::kDocuments / 2, 2);
    TokenOrder order{Packing::from_lengths(lengths), {}};
    for (int64_t t = 0; t < 2 * Signs::kDocuments; t += 4) {
      order.index.insert(order.index.end(), {t, t + 1});
    }
    return order;
  }());
  const at::Tensor own_D = test.values(0.25, mine);
  for (int64_t d = 0; d < Signs::kDocuments; d += 2) {
    CHECK(own_D[d].item<double>() == dropped_D[d].item<double>());
    CHECK(own_D[d + 1].item<double>() == 0.0);
  }
  // The terms are x_i w_i with x_i = +-1, kept with probability q and divided by q. Their sum has
  // mean sum x_i w_i and variance (1/q - 1) sum w_i^2. Over S seeds and D documents the standard
  // error of the mean is sigma / sqrt(S D), that of the variance about sigma^2 sqrt(2 / (S D)).
  // Five standard errors are exceeded once in two million.
  constexpr int64_t kSeeds = 200, kNumbers = kSeeds * Signs::kDocuments;
  const double variance = test.weight_1D.square().sum().item<double>() * (1 / 0.75 - 1);
  double sum = 0.0, squares = 0.0;
  for (int64_t seed = 0; seed < kSeeds; ++seed) {
    test.model->set_dropout_seed(seed);
    const at::Tensor off_D = test.values(0.25, test.row) - without_D;
    sum += off_D.sum().item<double>();
    squares += off_D.square().sum().item<double>();
  }
  CHECK(std::abs(sum / kNumbers) < 5 * std::sqrt(variance / kNumbers));
  CHECK(std::abs(squares / kNumbers - variance) < 5 * variance * std::sqrt(2.0 / kNumbers));
}

TEST_CASE(
    "value head: dropout scales bf16 hidden states by 1 / (1 - p), not by what bf16 has of it") {
  Signs test(at::kBFloat16);
  // The value is a single element: -1 or 1.
  test.weight_1D = at::zeros({1, Signs::kDim}, at::kFloat);
  test.weight_1D.select(1, 0).fill_(1.0);
  test.bias_1 = at::zeros({1}, at::kFloat);
  test.model->set_dropout_seed(7);
  const at::Tensor values_D = test.values(0.1, test.row).abs();
  const at::Tensor kept_K = values_D.masked_select(values_D.ne(0.0));
  CHECK(kept_K.numel() > Signs::kDocuments / 2);
  CHECK(kept_K.numel() < Signs::kDocuments);
  CHECK((kept_K * 0.9 - 1.0).abs().max().item<double>() < 1e-7);  // fp32's rounding; bf16: 1.6e-3
}

}  // namespace
}  // namespace longspan
