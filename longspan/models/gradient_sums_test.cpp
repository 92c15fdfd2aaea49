// Gradients of bf16 parameters: sums over a row's chunks are as exact as without chunks. T: tokens,
// L: label positions, D: model dim, V: vocabulary.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>

#include "longspan/attention/block_kernel.h"
#include "longspan/kernels/embedding.h"
#include "longspan/kernels/linear_cross_entropy.h"
#include "longspan/kernels/rope.h"
#include "longspan/layers/gated_mlp.h"
#include "longspan/layers/layer.h"
#include "longspan/layers/self_attention.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;
using Gradients = std::map<std::string, at::Tensor>;

// bf16 has 8 bits: rounding changes an element by at most 2^-8 of it, and a tensor by 0.42 x 2^-8
// in the Frobenius norm (uniform errors, elements anywhere between powers of two).
constexpr double kRounding = 0.42 / 256;

constexpr int64_t kD = 32, kI = 48, kN = 4, kM = 2, kH = 16, kR = 4;

at::Tensor rounded(at::IntArrayRef shape, double scale, double mean = 0) {
  return (at::randn(shape) * scale + mean).to(at::kBFloat16);
}

/// A layer's weights with biases, head norms and adapters; all values are exact in bf16.
struct Weights {
  at::Tensor input_norm, post_attention_norm;
  SelfAttention::Weights attention;
  GatedMlp::Weights mlp;

  Layer layer() const {
    SelfAttentionSpec spec;
    spec.attention = plain_attention(kN, kM, kH);
    spec.rotary = RotarySpec{};
    spec.qk_norm = spec.qkv_bias = spec.output_bias = true;
    const double eps = 1e-6;
    return {input_norm,
            post_attention_norm,
            NormKind::kWeight,
            eps,
            std::make_shared<SelfAttention>(
                spec, attention, SelfAttention::Norm{NormKind::kWeight, eps}, /*rotary=*/0),
            std::make_shared<GatedMlp>(GatedMlpSpec{.intermediate_size = kI, .bias = true}, mlp)};
  }
};

Weights weights_of(at::ScalarType dtype, bool adapters) {
  at::manual_seed(5);
  const auto leaf = [&](at::Tensor tensor) { return tensor.to(dtype).requires_grad_(true); };
  const auto linear = [&](int64_t out, int64_t in) {
    Linear layer;
    layer.weight = leaf(rounded({out, in}, 0.2));
    layer.bias = leaf(rounded({out}, 0.2));
    if (!adapters) return layer;
    layer.lora_a = leaf(rounded({kR, in}, 0.2));
    layer.lora_b = leaf(rounded({out, kR}, 0.2));
    layer.lora_scale = 0.5;
    return layer;
  };
  Weights weights;
  weights.input_norm = leaf(rounded({kD}, 0.1, 1));
  weights.post_attention_norm = leaf(rounded({kD}, 0.1, 1));
  weights.attention.q_proj = linear(kN * kH, kD);
  weights.attention.k_proj = linear(kM * kH, kD);
  weights.attention.v_proj = linear(kM * kH, kD);
  weights.attention.o_proj = linear(kD, kN * kH);
  weights.mlp.gate_proj = linear(kI, kD);
  weights.mlp.up_proj = linear(kI, kD);
  weights.mlp.down_proj = linear(kD, kI);
  weights.attention.q_norm_K = leaf(rounded({kH}, 0.1, 1));
  weights.attention.k_norm_K = leaf(rounded({kH}, 0.1, 1));
  return weights;
}

/// Returns the gradients by name and resets them on the parameters.
Gradients take_gradients(const Weights& weights) {
  Gradients gradients;
  const auto take = [&](const std::string& name, const at::Tensor& parameter) {
    if (!parameter.defined()) return;
    const bool same_dtype = parameter.grad().scalar_type() == parameter.scalar_type();
    REQUIRE(same_dtype);
    gradients[name] = parameter.grad();
    parameter.mutable_grad().reset();
  };
  const std::vector<std::pair<std::string, const Linear*>> layers = {
      {"q", &weights.attention.q_proj}, {"k", &weights.attention.k_proj},
      {"v", &weights.attention.v_proj}, {"o", &weights.attention.o_proj},
      {"gate", &weights.mlp.gate_proj}, {"up", &weights.mlp.up_proj},
      {"down", &weights.mlp.down_proj}};
  for (const auto& [name, layer] : layers) {
    take(name, layer->weight);
    take(name + " bias", layer->bias);
    take(name + " A", layer->lora_a);
    take(name + " B", layer->lora_b);
  }
  take("input norm", weights.input_norm);
  take("post-attention norm", weights.post_attention_norm);
  take("q norm", weights.attention.q_norm_K);
  take("k norm", weights.attention.k_norm_K);
  return gradients;
}

struct Computed {
  at::ScalarType hidden, parameters, compute;
};
constexpr Computed kPureBf16{at::kBFloat16, at::kBFloat16, at::kBFloat16},
    kPreciseSums{at::kBFloat16, at::kFloat, at::kBFloat16},
    kFp32{at::kFloat, at::kFloat, at::kFloat};

/// Returns the gradients for one row of T tokens in documents of 64. The MLP runs in `tiles`
/// chunks; queries, keys and values are computed in chunks of 1024 tokens.
Gradients block_gradients(const Computed& as, int64_t T, int64_t tiles, bool adapters = false) {
  const Weights weights = weights_of(as.parameters, adapters);
  at::manual_seed(6);
  const at::Tensor h_TD = rounded({T, kD}, 1.0, 0.3).to(as.hidden).requires_grad_(true),
                   dout_TD = rounded({T, kD}, 1.0, 0.3).to(as.hidden);
  const auto attention = make_local(cpu_block_kernel());
  const RowContext row{attention.get(),
                       Packing::from_lengths(std::vector<int64_t>(T / 64, 64)),
                       {rotary_table(rotary_frequencies({RotarySpec{}, kH}),
                                     at::arange(64, at::kLong).repeat({T / 64}), as.compute)},
                       as.compute,
                       tiles};
  const at::Tensor out_TD = run_checkpointed(h_TD, weights.layer(), row, {});
  torch::autograd::backward({out_TD}, {dout_TD});
  return take_gradients(weights);
}

void check_equal(const Gradients& actual, const Gradients& expected) {
  REQUIRE(actual.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    CHECK(at::equal(actual.at(name), tensor.to(at::kBFloat16)));
  }
}

TEST_CASE("bf16 gradients of a block are the row's sums in fp32, rounded once") {
  for (const bool adapters : {false, true}) {
    CAPTURE(adapters);
    check_equal(block_gradients(kPureBf16, 2112, 64, adapters),
                block_gradients(kPreciseSums, 2112, 64, adapters));
  }
}

TEST_CASE("bf16 gradients of a block are as near to fp32's in 64 chunks as in one") {
  const auto errors = [](int64_t T, int64_t tiles) {
    const Gradients bf16 = block_gradients(kPureBf16, T, tiles),
                    fp32 = block_gradients(kFp32, T, tiles);
    std::map<std::string, double> errors;
    for (const char* name : {"q", "k", "v", "o", "gate", "up", "down"}) {
      errors[name] = relative_error(bf16.at(name), fp32.at(name));
    }
    return errors;
  };
  // Each summand has been rounded some twelve times (norm, projection, rotation, attention, gate
  // and up, activation; the same for its gradient; the row between the halves). These roundings are
  // independent, as are those of the partial sums and of the sum: sqrt(14) of one.
  const double few = 4 * kRounding;
  for (const int64_t chunks : {1, 8, 64}) {
    for (const auto& [name, error] : errors(1024 * 8, chunks)) {
      CAPTURE(chunks);
      INFO(name);
      CHECK(error < few);
    }
  }
}

struct Head {
  at::Tensor hidden_LD, weight_VD, labels_L;
};

/// Like a model's labels: some are frequent, most tokens never occur.
Head head_of(int64_t L, int64_t V, at::ScalarType hidden, at::ScalarType parameters) {
  at::manual_seed(7);
  Head head;
  head.hidden_LD = rounded({L, kD}, 1.0, 0.3).to(hidden).requires_grad_(true);
  head.weight_VD = rounded({V, kD}, 0.2).to(parameters).requires_grad_(true);
  head.labels_L = at::rand({L}).pow(4).mul(static_cast<double>(V) / 2).to(at::kLong);
  return head;
}

enum class Way { kNllSum, kLogprobs };

at::Tensor head_gradient(const Head& head, Way way, int64_t chunk_bytes, int rows = 1,
                         const HeadGradient& known = {}) {
  for (int i = 0; i < rows; ++i) {
    const at::Tensor nll =
        way == Way::kNllSum
            ? linear_nll_sum(head.hidden_LD, head.weight_VD, head.labels_L, chunk_bytes, known)
            : -linear_token_logprobs(head.hidden_LD, head.weight_VD, head.labels_L, chunk_bytes)
                   .sum();
    torch::autograd::backward({nll / 100.0}, {});
  }
  at::Tensor gradient = head.weight_VD.grad();
  head.weight_VD.mutable_grad().reset();
  head.hidden_LD.mutable_grad().reset();
  return gradient;
}

TEST_CASE("bf16 gradients of the head are the row's sums in fp32, rounded once") {
  for (const int64_t L : {32, 256, 2048}) {  // 1, 8 and 64 chunks
    for (const Way way : {Way::kNllSum, Way::kLogprobs}) {
      CAPTURE(L);
      CAPTURE(static_cast<int>(way));
      const auto gradient = [&](const Computed& as) {
        return head_gradient(head_of(L, 300, as.hidden, as.parameters), way, 1);
      };
      const at::Tensor bf16 = gradient(kPureBf16);
      CHECK((bf16.scalar_type() == at::kBFloat16));
      CHECK(at::equal(bf16, gradient(kPreciseSums).to(at::kBFloat16)));
      // Logits of about 2 put probabilities off by two roundings; then their gradients, the partial
      // sums and the sum: sqrt(4 + 3).
      CHECK(relative_error(bf16, gradient(kFp32)) < 3 * kRounding);
    }
  }
}

TEST_CASE("bf16 gradients of the head are rounded once where their scale is known") {
  const auto ahead = [](int64_t L, const Computed& as, bool place) {
    const Head head = head_of(L, 300, as.hidden, as.parameters);
    if (place) head.weight_VD.mutable_grad() = at::zeros_like(head.weight_VD);
    return head_gradient(head, Way::kNllSum, 1, 1, {1 / 100.0, place});
  };
  // Elements differ where fp32's error crosses a tie of bf16's rounding: one in some thousands. If
  // an element were also rounded before the scale, one in four or more would differ.
  const auto share_apart = [](const at::Tensor& a, const at::Tensor& b) {
    return a.ne(b.to(at::kBFloat16)).to(at::kDouble).mean().item<double>();
  };
  for (const bool place : {false, true}) {
    CAPTURE(place);
    const Head head = head_of(32, 300, at::kBFloat16, at::kBFloat16);  // one chunk
    const at::Tensor hidden_LD = head.hidden_LD.detach(), weight_VD = head.weight_VD.detach();
    const at::Tensor dlogits_LV = at::mm(hidden_LD, weight_VD.t()).to(at::kFloat).softmax(1) -
                                  at::one_hot(head.labels_L, 300);
    const at::Tensor product_VD =
        at::mm(dlogits_LV.to(at::kBFloat16).to(at::kDouble).t(), hidden_LD.to(at::kDouble));
    CHECK(share_apart(ahead(32, kPureBf16, place), product_VD / 100.0) < 0.02);
    // Eight chunks.
    CHECK(share_apart(ahead(256, kPureBf16, place), ahead(256, kPreciseSums, place)) < 0.02);
  }
}

TEST_CASE("bf16 gradients of frequent tokens are the row's sums in fp32, rounded once") {
  at::manual_seed(8);
  const int64_t T = 4096, V = 50;
  const at::Tensor tokens_T = at::rand({T}).pow(3).mul(V).to(at::kLong);  // one in four is token 0
  const at::Tensor rows_TD = rounded({T, kD}, 1.0, 0.5);
  const auto gradient = [&](at::ScalarType dtype, std::optional<int64_t> padding) {
    const at::Tensor weight_VD = at::randn({V, kD}).to(dtype).requires_grad_(true);
    for (int row = 0; row < 2; ++row) {
      const at::Tensor h_TD = embed(weight_VD, tokens_T, at::kBFloat16, padding);
      torch::autograd::backward({h_TD}, {rows_TD});
    }
    return weight_VD.grad();
  };
  const at::Tensor bf16 = gradient(at::kBFloat16, {}), fp32 = gradient(at::kFloat, {});
  // Two rows: rounded twice.
  CHECK(relative_error(bf16, fp32) < 2 * kRounding);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor without = gradient(dtype, 3), with = gradient(dtype, {});
    CHECK_FALSE(without[3].any().item<bool>());
    CHECK(with[3].any().item<bool>());
    without[3].copy_(with[3]);
    CHECK(at::equal(without, with));
  }
}

TEST_CASE("head: a second row takes no second gradient of the head") {
  const int64_t L = 64, V = 20'000;
  const auto bytes = [](const at::Tensor& x) { return static_cast<int64_t>(x.nbytes()); };
  for (const Computed& as : {kFp32, kPreciseSums, kPureBf16}) {
    CAPTURE(std::string(c10::toString(as.parameters)));
    CAPTURE(std::string(c10::toString(as.compute)));
    const Head head = head_of(L, V, as.hidden, as.parameters);
    const HeadGradient known{1 / 100.0};
    AllocationCounter counter(AllocationCounter::Of::kProcess);
    int64_t peaks[2];
    for (int64_t& peak : peaks) {
      const at::Tensor nll =
          linear_nll_sum(head.hidden_LD, head.weight_VD, head.labels_L, 1, known);
      torch::autograd::backward({nll / 100.0}, {});
      peak = counter.peak_bytes();
      counter.restart_peak();
    }
    // In addition to the fp32 sum, the bf16 gradient of the first row is held.
    const bool summed_apart = as.parameters == at::kBFloat16;
    CHECK(peaks[1] <=
          peaks[0] + 2 * bytes(head.hidden_LD) + (summed_apart ? bytes(head.weight_VD) : 0));
  }
}

TEST_CASE("head: gradients of two rows are the same however they are added") {
  for (const Computed& as : {kFp32, kPreciseSums, kPureBf16}) {
    const Head head = head_of(256, 300, as.hidden, as.parameters);
    const at::Tensor once = head_gradient(head, Way::kNllSum, 1),
                     beside = head_gradient(head, Way::kNllSum, 1, 2),
                     ahead = head_gradient(head, Way::kNllSum, 1, 2, {1 / 100.0});
    const bool bf16 = as.parameters == at::kBFloat16;
    CHECK(relative_error(beside, 2 * once) < (bf16 ? 2 * kRounding : 1e-7));
    // In fp32 each element is scaled before the sum instead of after it.
    CHECK(relative_error(ahead, beside) < (bf16 ? 2 * kRounding : 1e-6));
  }
  // One row alone gives the same bits, also when accumulated into zeros.
  const Head head = head_of(256, 300, at::kFloat, at::kFloat);
  const at::Tensor alone = head_gradient(head, Way::kNllSum, 1);
  CHECK(at::equal(head_gradient(head, Way::kNllSum, 1, 1, {1 / 100.0}), alone));
  const at::Tensor place = at::zeros_like(alone);
  head.weight_VD.mutable_grad() = place;
  CHECK(head_gradient(head, Way::kNllSum, 1, 1, {.upstream = {}, .is_zero = true}).is_same(place));
  CHECK(at::equal(place, alone));
  // A backward with another scale than announced throws.
  head.weight_VD.mutable_grad() = place;
  CHECK_THROWS(head_gradient(head, Way::kNllSum, 1, 1, {0.5}));
}

}  // namespace
}  // namespace longspan
