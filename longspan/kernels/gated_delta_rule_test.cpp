// Compares the chunked gated delta rule, the convolution before it and its gates with the same one
// token at a time, in fp64.
#include "longspan/kernels/gated_delta_rule.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "longspan/cuda/kernels.h"
#include "longspan/kernels/causal_conv.h"
#include "longspan/kernels/delta_rule_gates.h"
#include "longspan/memory/counting_allocator.h"
#include "longspan/spec/composed_rule.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

struct Heads {
  int64_t keys, values, key_dim, value_dim;
};

struct Case {
  Packing packing;
  DeltaRuleInputs inputs;
  at::Tensor initial_NKV, dout_TNV, dstate_NKV;
};

using Rule = std::function<DeltaRuleResult(const DeltaRuleInputs&, const Packing&,
                                           const at::Tensor& initial_NKV)>;

/// The composed rule in parts of 128 tokens.
DeltaRuleResult composed(const DeltaRuleInputs& inputs, const Packing& packing,
                         const at::Tensor& initial_NKV) {
  return gated_delta_rule_composed(inputs, packing, initial_NKV, 2 * kRuleChunk);
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

/// Decays from almost none to almost complete.
Case make_case(const Heads& heads, const std::vector<int64_t>& lengths, bool goes_on) {
  at::manual_seed(31);
  Case c;
  c.packing = Packing::from_lengths(lengths);
  const int64_t T = c.packing.num_tokens(), N = heads.values;
  const auto random = [](std::initializer_list<int64_t> sizes) {
    return at::randn(sizes, at::kDouble);
  };
  c.inputs = {leaf(random({T, heads.keys, heads.key_dim})),
              leaf(random({T, heads.keys, heads.key_dim})), leaf(random({T, N, heads.value_dim})),
              leaf(-at::exp(2 * random({T, N}) - 2)), leaf(at::sigmoid(random({T, N})))};
  if (goes_on) c.initial_NKV = leaf(random({N, heads.key_dim, heads.value_dim}));
  c.dout_TNV = random({T, N, heads.value_dim});
  c.dstate_NKV = random({N, heads.key_dim, heads.value_dim});
  return c;
}

/// Output, state, and the gradients of all inputs.
std::vector<at::Tensor> results_of(const Case& c, const DeltaRuleResult& result) {
  torch::autograd::backward(
      {(result.out_TNV * c.dout_TNV).sum() + (result.state_NKV * c.dstate_NKV).sum()}, {});
  std::vector<at::Tensor> results{result.out_TNV.detach(), result.state_NKV.detach()};
  std::vector<at::Tensor> leaves{c.inputs.q_TMK, c.inputs.k_TMK, c.inputs.v_TNV, c.inputs.g_TN,
                                 c.inputs.beta_TN};
  if (c.initial_NKV.defined()) leaves.push_back(c.initial_NKV);
  for (const at::Tensor& x : leaves) {
    results.push_back(x.grad());
    x.mutable_grad().reset();
  }
  return results;
}

void check_near(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected,
                double tolerance) {
  static const char* const kNames[] = {"out", "state", "dq", "dk", "dv", "dg", "dbeta", "dinitial"};
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(kNames[i]);
    CHECK(relative_error(actual[i], expected[i]) < tolerance);
  }
}

TEST_CASE("gated delta rule: chunks are the recurrence, in output, state and all gradients") {
  const std::vector<std::vector<int64_t>> rows{
      {1}, {64}, {130}, {9, 1, 14}, {63, 1, 64, 2, 100}, {3, 700}};
  for (const Heads& heads : {Heads{1, 1, 8, 8},
                             {2, 4, 4, 6},
                             {4, 4, 5, 3},
                             {3, 9, 6, 2},
                             {6, 12, 4, 5},
                             {16, 32, 3, 4}}) {
    CAPTURE(heads.values);
    for (const auto& lengths : rows) {
      if (heads.values > 9 && lengths.size() < 3) continue;  // several documents are enough
      CAPTURE(lengths.size());
      for (const bool goes_on : {false, true}) {
        CAPTURE(goes_on);
        const Case c = make_case(heads, lengths, goes_on);
        const auto expected =
            results_of(c, gated_delta_rule_by_token(c.inputs, c.packing, c.initial_NKV));
        // The inverse of a chunk sums in another order than the recurrence.
        check_near(results_of(c, gated_delta_rule(c.inputs, c.packing, c.initial_NKV)), expected,
                   1e-10);
        check_near(results_of(c, composed(c.inputs, c.packing, c.initial_NKV)), expected, 1e-10);
      }
    }
  }
}

/// Kernels that compute nothing, to count memory.
class IdleKernels : public cuda::Kernels {
 public:
  int num_multiprocessors() const override { return 1; }

 protected:
  void start(const std::string&, const cuda::Launch&, const void*) override {}
};

TEST_CASE("gated delta rule: the account knows what a part's backward works with") {
  IdleKernels idle;
  const cuda::WithKernels lent(idle);
  for (const RecurrenceSpec& spec : {RecurrenceSpec{4, 4, 128, 64, 4},
                                     {4, 8, 128, 128, 4},
                                     {2, 8, 64, 64, 4},
                                     {4, 8, 32, 32, 4}}) {
    for (const int64_t T : {512, 2048}) {
      CAPTURE(spec.num_value_heads);
      CAPTURE(spec.key_dim);
      CAPTURE(T);
      const int64_t M = spec.num_key_heads, N = spec.num_value_heads, K = spec.key_dim;
      const DeltaRuleInputs in{leaf(at::randn({T, M, K})), leaf(at::randn({T, M, K})),
                               leaf(at::randn({T, N, spec.value_dim})),
                               leaf(-at::exp(at::randn({T, N}))),
                               leaf(at::sigmoid(at::randn({T, N})))};
      const auto run = [&] {
        return gated_delta_rule_composed(in, Packing::from_lengths({T}), {});
      };
      const double forward = [&] {
        const AllocationCounter counter(AllocationCounter::Of::kThisThread);
        run();
        // Less the output and two states.
        return static_cast<double>(counter.peak_bytes() -
                                   4 * (T * spec.num_values() + 2 * N * K * spec.value_dim));
      }();
      const auto result = run();
      const at::Tensor dout = at::randn(result.out_TNV.sizes());
      const AllocationCounter counter(AllocationCounter::Of::kThisThread);
      torch::autograd::backward({result.out_TNV}, {dout});
      // Gradients of the inputs, which grow with the row, are counted elsewhere.
      const int64_t gradients = 4 * T * (2 * spec.num_queries() + spec.num_values() + 2 * N);
      const double working = static_cast<double>(counter.peak_bytes() - gradients);
      const RuleMemory memory = rule_memory(spec, 4);
      const auto known = [&](int64_t bytes) { return static_cast<double>(T / kRuleChunk * bytes); };
      CHECK(known(memory.chunk_bytes) / working > 0.95);
      CHECK(known(memory.chunk_bytes) / working < 1.05);
      CHECK(known(memory.forward_bytes) / forward > 0.95);
      CHECK(known(memory.forward_bytes) / forward < 1.05);
    }
  }
}

TEST_CASE("gated delta rule: parts of a row are equal, and grow with it") {
  const RecurrenceSpec qwen{16, 32, 128, 128, 4};
  const RuleMemory memory = rule_memory(qwen, 2);
  CHECK(memory.token_bytes == 2 * 32 * 128);
  const int64_t most = kComposedRuleBytes / memory.chunk_bytes;
  CHECK(chunks_of_part(0, memory) == 0);
  CHECK(chunks_of_part(most * kRuleChunk, memory) == most);
  CHECK(chunks_of_part(most * kRuleChunk + 1, memory) == (most + 2) / 2);
  for (const int64_t tokens : {int64_t{1} << 17, int64_t{1} << 20}) {
    const int64_t part = chunks_of_part(tokens, memory),
                  parts = (tokens / kRuleChunk + part - 1) / part;
    CHECK(parts == 5);
    CHECK(part * memory.chunk_bytes <= kComposedRuleTensors * tokens * memory.token_bytes);
  }
  CHECK(chunks_of_part(1 << 20, {int64_t{3} << 30, 0, 1}) == kLeastChunksOfPart);
}

TEST_CASE("gated delta rule: keys that are all alike, which add up without decay") {
  Case c = make_case({1, 2, 8, 8}, {200}, /*goes_on=*/true);
  c.inputs.k_TMK = leaf(at::ones_like(c.inputs.k_TMK));
  c.inputs.g_TN = leaf(at::full_like(c.inputs.g_TN, -1e-4));
  c.inputs.beta_TN = leaf(at::full_like(c.inputs.beta_TN, 0.999));
  const auto expected =
      results_of(c, gated_delta_rule_by_token(c.inputs, c.packing, c.initial_NKV));
  for (const Rule& rule : {Rule{gated_delta_rule}, Rule{composed}}) {
    check_near(results_of(c, rule(c.inputs, c.packing, c.initial_NKV)), expected, 1e-10);
  }
}

TEST_CASE("gated delta rule: operators alone, of no heads and of no tokens") {
  for (const auto& [num_heads, num_tokens] : {std::pair{0, 5}, {2, 0}}) {
    Case c = make_case({2, 2, 4, 3}, {5}, /*goes_on=*/true);
    const auto some = [&](const at::Tensor& x) {
      return leaf(x.detach().narrow(0, 0, num_tokens).narrow(1, 0, num_heads));
    };
    c.packing = num_tokens > 0 ? Packing::single(num_tokens) : Packing::from_lengths({});
    c.inputs = {some(c.inputs.q_TMK), some(c.inputs.k_TMK), some(c.inputs.v_TNV),
                some(c.inputs.g_TN), some(c.inputs.beta_TN)};
    c.initial_NKV = leaf(c.initial_NKV.detach().narrow(0, 0, num_heads));
    c.dout_TNV = c.dout_TNV.narrow(0, 0, num_tokens).narrow(1, 0, num_heads);
    c.dstate_NKV = c.dstate_NKV.narrow(0, 0, num_heads);
    const auto results = results_of(c, composed(c.inputs, c.packing, c.initial_NKV));
    CHECK(at::equal(results[1], c.initial_NKV));
    CHECK(at::equal(results.back(), c.dstate_NKV));
    CHECK((results[0].sizes() == c.inputs.v_TNV.sizes()));
  }
}

TEST_CASE("gated delta rule: nothing of a document reaches another") {
  const Case c = make_case({2, 4, 8, 8}, {70, 3, 90}, /*goes_on=*/false);
  const auto alone = [&](const Rule& rule, int64_t d) {
    const auto part = [&](const at::Tensor& x) {
      return leaf(x.detach().narrow(0, c.packing.begin(d), c.packing.length(d)));
    };
    Case one{Packing::single(c.packing.length(d)),
             {part(c.inputs.q_TMK), part(c.inputs.k_TMK), part(c.inputs.v_TNV), part(c.inputs.g_TN),
              part(c.inputs.beta_TN)},
             {},
             part(c.dout_TNV).detach(),
             d == 2 ? c.dstate_NKV : at::zeros_like(c.dstate_NKV)};
    return results_of(one, rule(one.inputs, one.packing, {}));
  };
  for (const Rule& rule : {Rule{gated_delta_rule}, Rule{composed}}) {
    const auto packed = results_of(c, rule(c.inputs, c.packing, {}));
    std::vector<std::vector<at::Tensor>> parts;
    for (int64_t d = 0; d < 3; ++d) parts.push_back(alone(rule, d));
    std::vector<at::Tensor> expected;
    for (size_t i = 0; i < packed.size(); ++i) {
      expected.push_back(i == 1 ? parts[2][1] : at::cat({parts[0][i], parts[1][i], parts[2][i]}));
    }
    check_near(packed, expected, 1e-12);
  }
}

TEST_CASE("gated delta rule: fp32 and bf16 are as near to fp64 as their digits") {
  const Case c = make_case({2, 4, 16, 16}, {150, 90}, /*goes_on=*/false);
  const auto expected = results_of(c, gated_delta_rule(c.inputs, c.packing, {}));
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}}) {
    const auto cast = [dtype = dtype](const at::Tensor& x) { return leaf(x.detach().to(dtype)); };
    // Gates are at least fp32, as delta_rule_gates() makes them.
    const auto gate = [](const at::Tensor& x) { return leaf(x.detach().to(at::kFloat)); };
    Case some = c;
    some.inputs = {cast(c.inputs.q_TMK), cast(c.inputs.k_TMK), cast(c.inputs.v_TNV),
                   gate(c.inputs.g_TN), gate(c.inputs.beta_TN)};
    for (const Rule& rule : {Rule{gated_delta_rule}, Rule{composed}}) {
      const DeltaRuleResult result = rule(some.inputs, c.packing, {});
      const bool same_dtype = result.out_TNV.scalar_type() == dtype;
      CHECK(same_dtype);
      check_near(results_of(some, result), expected, tolerance);
    }
  }
}

TEST_CASE("causal convolution: output and gradients, over documents and from what is before") {
  constexpr int64_t kChannels = 300, kWidth = 4;
  for (const int64_t num_before : {0, 2, 3}) {
    CAPTURE(num_before);
    at::manual_seed(32);
    const Packing packing = Packing::from_lengths({5, 1, 2, 9});
    const int64_t T = packing.num_tokens();
    const at::Tensor all = leaf(at::randn({kChannels + 40, 1, kWidth}, at::kDouble)),
                     x = leaf(at::randn({T, kChannels}, at::kDouble)),
                     before = leaf(at::randn({num_before, kChannels}, at::kDouble)),
                     dy = at::randn({T, kChannels}, at::kDouble);
    // Rows of the weight from two places.
    const ParameterRows rows{all, {{10, 100}, {130, 200}}};
    const at::Tensor weight = at::cat({all.narrow(0, 10, 100), all.narrow(0, 130, 200)}).squeeze(1);
    std::vector<at::Tensor> outs;
    for (int64_t d = 0; d < packing.num_documents(); ++d) {
      const at::Tensor own = x.narrow(0, packing.begin(d), packing.length(d));
      const at::Tensor zeros = at::zeros({kWidth - 1, kChannels}, at::kDouble);
      const at::Tensor padded =
          at::cat(d == 0 ? std::vector{zeros, before, own} : std::vector{zeros, own});
      const at::Tensor y =
          at::conv1d(padded.t().unsqueeze(0), weight.unsqueeze(1), at::Tensor(), at::IntArrayRef{1},
                     at::IntArrayRef{0}, at::IntArrayRef{1}, kChannels);
      outs.push_back(at::silu(y.squeeze(0).t()).narrow(0, d == 0 ? num_before : 0, own.size(0)));
    }
    const auto gradients = [&](const at::Tensor& y) {
      torch::autograd::backward({(y * dy).sum()}, {});
      std::vector<at::Tensor> taken;
      for (const at::Tensor& parameter : {x, all, before}) {
        taken.push_back(parameter.grad());
        parameter.mutable_grad().reset();
      }
      return taken;
    };
    const at::Tensor expected = at::cat(outs);
    const auto expected_gradients = gradients(expected);
    for (const auto& convolve : {causal_conv_silu, causal_conv_silu_composed}) {
      const at::Tensor y = convolve(x, rows, packing, before);
      CHECK(relative_error(y, expected) < 1e-13);
      const auto actual_gradients = gradients(y);
      for (size_t i = 0; i < (num_before > 0 ? 3 : 2); ++i) {
        CAPTURE(i);
        CHECK(relative_error(actual_gradients[i], expected_gradients[i]) < 1e-13);
      }
    }
  }
}

TEST_CASE("gates and gated norm of the delta rule: output and gradients") {
  at::manual_seed(33);
  const int64_t T = 21, N = 6, V = 5;
  const auto random = [](std::initializer_list<int64_t> sizes) {
    return leaf(at::randn(sizes, at::kDouble));
  };
  const at::Tensor a = random({T, 4}), b = random({T, 4}), a_log = random({N}), bias = random({N});
  const at::Tensor x = random({T, N, V}), z = random({T, N, V}), weight = random({V});
  const auto gradients = [&](const std::vector<at::Tensor>& outs) {
    at::manual_seed(34);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& y : outs) loss = loss + (y * at::randn(y.sizes(), at::kDouble)).sum();
    torch::autograd::backward({loss}, {});
    std::vector<at::Tensor> taken = outs;
    for (const at::Tensor& parameter : {a, b, a_log, bias, x, z, weight}) {
      taken.push_back(parameter.grad());
      parameter.mutable_grad().reset();
    }
    return taken;
  };
  const auto some = [](const at::Tensor& parameter) { return parameter.narrow(0, 1, 4); };
  const auto expected =
      gradients({-some(a_log).exp() * at::softplus(a + some(bias)), at::sigmoid(b),
                 x * (x.square().mean(-1, true) + 1e-3).rsqrt() * weight * at::silu(z)});
  const DeltaRuleGates gates = delta_rule_gates(a, b, {a_log, {{1, 4}}}, {bias, {{1, 4}}});
  const auto actual = gradients({gates.g_TN, gates.beta_TN, gated_rms_norm(x, z, weight, 1e-3)});
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(relative_error(actual[i], expected[i]) < 1e-12);
  }
}

}  // namespace
}  // namespace longspan
