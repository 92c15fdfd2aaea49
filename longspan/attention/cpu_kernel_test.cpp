// T: query tokens, S: key tokens, N: query heads, M: kv heads, H: head dim.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>

#include "longspan/attention/block_kernel.h"
#include "longspan/attention/leaf_attention.h"
#include "longspan/attention/saved_attention.h"
#include "longspan/base/user_error.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::relative_error;

// fp64 keeps 16 digits; some hundred terms and an exp lose two.
constexpr double kTolerance = 1e-12;

at::Tensor random(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

// Attention by one mask over a plain softmax, differentiable by autograd. Queries in no block get
// 0.
struct Plain {
  at::Tensor out_TNH, lse_NT;
};

AttentionSpec spec_of(const at::Tensor& q, const at::Tensor& k) {
  return plain_attention(q.size(1), k.size(1), q.size(2));
}

Plain plain_softmax(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const AttentionSpec& spec, const std::vector<Block>& blocks) {
  at::Tensor seen = at::zeros({q.size(0), k.size(0)}, at::kBool);
  for (const Block& b : blocks) {
    at::Tensor all = at::ones({b.q_length, b.k_length}, at::kBool);
    if (b.causal) all = all.tril(b.offset);
    if (b.lower) all = all.triu(*b.lower);
    seen.narrow(0, b.q_begin, b.q_length).narrow(1, b.k_begin, b.k_length).copy_(all);
  }
  const int64_t group = q.size(1) / k.size(1);
  const at::Tensor keys = k.repeat_interleave(group, 1).permute({1, 2, 0});
  at::Tensor scores = at::matmul(q.transpose(0, 1), keys) * spec.scale;
  if (spec.softcap) scores = *spec.softcap * at::tanh(scores / *spec.softcap);
  scores = scores.masked_fill(seen.logical_not(), -1e300);
  const at::Tensor any = seen.any(1).unsqueeze(-1);
  const at::Tensor weights = at::softmax(scores, -1) * any;
  return {at::matmul(weights, v.repeat_interleave(group, 1).transpose(0, 1)).transpose(0, 1),
          at::logsumexp(scores, -1)};
}

TEST_CASE("cpu kernel: blocks, groupings and strides against a plain softmax, fp64") {
  const int64_t T = 40, S = 50;
  const std::vector<std::vector<Block>> block_lists = {
      {{0, 40, 0, 40, true}},                      // all queries
      {{0, 40, 0, 50, false}},                     // all queries and keys
      {{0, 7, 0, 7, true}, {7, 33, 7, 33, true}},  // two documents
      {{0, 10, 0, 30, true}},                      // fewer queries than keys
      {{20, 20, 0, 50, false}},                    // queries without a block
      {{0, 20, 0, 25, false}, {20, 20, 10, 40, false}, {0, 0, 0, 5, false}},  // shared keys
      {{0, 40, 0, 50, true, 10}},                                             // an offset
      {{0, 9, 0, 30, true, 40}, {9, 30, 5, 40, true, 3}},  // offsets beyond the keys; shared keys
      {{0, 30, 0, 30, true}, {30, 10, 0, 12, false}, {30, 10, 30, 10, true}},  // a fork
      // Queries in two or three blocks with gaps between them; blocks overlap in part.
      {{20, 10, 40, 10, false},
       {0, 12, 20, 20, true, 4},
       {0, 12, 0, 20, false},
       {14, 26, 0, 30, true, 12},
       {18, 5, 35, 5, true, 1},
       {38, 2, 45, 5, false}},
      // Windows: one document, an offset, queries that see nothing, two blocks.
      {{0, 40, 0, 40, true, 0, -6}},
      {{0, 40, 0, 50, true, 10, 3}},
      {{0, 30, 0, 12, false, 0, -8}, {30, 10, 20, 20, true, 4, 4}},
      {{0, 20, 0, 20, true, 0, -4}, {20, 20, 20, 20, true, 0, -4}, {20, 4, 16, 4, false, 0, 0}},
  };
  struct Dims {
    int64_t key, value;
    double scale;
    std::optional<double> softcap = {};
  };
  for (const auto& [N, M, dims] : {std::tuple{4, 4, Dims{16, 16, 0.25}},
                                   {6, 2, Dims{16, 16, 0.31}},
                                   {5, 1, Dims{16, 16, 0.25}},
                                   {6, 2, Dims{16, 10, 0.25}},
                                   {4, 4, Dims{16, 13, 0.2}},
                                   {6, 2, Dims{16, 10, 0.9, 2.5}},
                                   {5, 1, Dims{8, 24, 0.07}}}) {
    AttentionSpec spec = plain_attention(N, M, dims.key);
    spec.value_dim = dims.value;
    spec.scale = dims.scale;
    spec.softcap = dims.softcap;
    // Slices of one fused projection: rows are N + 2 M heads apart.
    const at::Tensor fused = random({S, N + 2 * M, std::max(dims.key, dims.value)});
    for (size_t i = 0; i < block_lists.size(); ++i) {
      CAPTURE(fmt::format("heads {}/{} of {} and {}, blocks {}", N, M, dims.key, dims.value, i));
      const auto& blocks = block_lists[i];
      const at::Tensor keys = fused.narrow(2, 0, dims.key);
      const at::Tensor q = keys.narrow(0, 3, T).narrow(1, 0, N), k = keys.narrow(1, N, M),
                       v = fused.narrow(1, N + M, M).narrow(2, 0, dims.value);
      const at::Tensor dout = random({N, T, dims.value}).transpose(0, 1);
      at::Tensor q_leaf = q.clone().requires_grad_(true), k_leaf = k.clone().requires_grad_(true),
                 v_leaf = v.clone().requires_grad_(true);
      const Plain expected = plain_softmax(q_leaf, k_leaf, v_leaf, spec, blocks);
      (expected.out_TNH * dout).sum().backward();

      const AttentionResult result = cpu_block_kernel().forward(q, k, v, spec, blocks);
      CHECK(result.out_TNH.is_contiguous());
      CHECK(relative_error(result.out_TNH, expected.out_TNH) < kTolerance);
      const at::Tensor finite = result.lse_NT.isfinite();
      CHECK(finite.equal((expected.lse_NT > -1e200)));
      CHECK(relative_error(result.lse_NT.masked_select(finite),
                           expected.lse_NT.masked_select(finite)) < kTolerance);
      const AttentionGradients gradients =
          cpu_block_kernel().backward({dout, q, k, v, result.out_TNH, result.lse_NT}, spec, blocks);
      CHECK(relative_error(gradients.dq_TNH, q_leaf.grad()) < kTolerance);
      CHECK(relative_error(gradients.dk_SMH, k_leaf.grad()) < kTolerance);
      CHECK(relative_error(gradients.dv_SMH, v_leaf.grad()) < kTolerance);
    }
  }
}

TEST_CASE("cpu kernel: queries in several blocks, fp32 and bf16, tiles and threads") {
  // Rows of two tiles and more; one kv head, so that the backward cuts its keys for two threads.
  const std::vector<Block> several{{0, 300, 0, 300, true},      {300, 250, 0, 110, false},
                                   {300, 250, 300, 250, true},  {560, 40, 550, 30, false},
                                   {580, 20, 580, 20, true, 3}, {300, 30, 560, 20, false}};
  const std::vector<Block> windows{{0, 300, 0, 300, true, 0, -99},
                                   {300, 99, 201, 99, false, 0, 1},
                                   {300, 320, 300, 320, true, 0, -99}};
  for (const auto& [N, M, value_dim, softcap, blocks] : {std::tuple{2, 1, 16, 0.0, several},
                                                         {4, 2, 16, 0.0, several},
                                                         {4, 2, 32, 0.0, several},
                                                         {2, 1, 24, 0.0, several},
                                                         {4, 4, 8, 0.0, several},
                                                         {4, 2, 16, 0.0, windows},
                                                         {4, 2, 24, 1.5, windows},
                                                         {4, 4, 8, 1.5, several}}) {
    AttentionSpec spec = plain_attention(N, M, 16);
    if (softcap > 0) spec.softcap = softcap;
    spec.value_dim = value_dim;
    if (value_dim != 16) spec.scale = 0.19;
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      CAPTURE(fmt::format("heads {}/{}, values of {}, {}", N, M, value_dim, c10::toString(dtype)));
      const at::Tensor q = random({620, N, 16}).to(dtype), k = random({620, M, 16}).to(dtype),
                       v = random({620, M, value_dim}).to(dtype),
                       dout = random({620, N, value_dim}).to(dtype);
      const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).requires_grad_(true); };
      const at::Tensor q_leaf = leaf(q), k_leaf = leaf(k), v_leaf = leaf(v);
      const Plain expected = plain_softmax(q_leaf, k_leaf, v_leaf, spec, blocks);
      (expected.out_TNH * dout.to(at::kDouble)).sum().backward();
      const BlockKernel& kernel = cpu_block_kernel();
      const AttentionResult result = kernel.forward(q, k, v, spec, blocks);
      const AttentionGradients gradients =
          kernel.backward({dout, q, k, v, result.out_TNH, result.lse_NT}, spec, blocks);
      CHECK((result.out_TNH.scalar_type() == dtype));
      CHECK((result.lse_NT.scalar_type() == at::kFloat));
      // fp32: rounding errors of sums of some hundred products. bf16: rounding of each part of the
      // output and of the whole, 2^-9 each; gradients are accumulated in fp32 from that output.
      const double tolerance = dtype == at::kFloat ? 3e-6 : 3.0 / 512;
      CHECK(relative_error(result.out_TNH, expected.out_TNH) < tolerance);
      const at::Tensor finite = result.lse_NT.isfinite();
      CHECK(finite.equal(expected.lse_NT > -1e200));
      CHECK(relative_error(result.lse_NT.masked_select(finite),
                           expected.lse_NT.masked_select(finite)) < tolerance);
      CHECK(relative_error(gradients.dq_TNH, q_leaf.grad()) < tolerance);
      CHECK(relative_error(gradients.dk_SMH, k_leaf.grad()) < tolerance);
      CHECK(relative_error(gradients.dv_SMH, v_leaf.grad()) < tolerance);
    }
  }
}

TEST_CASE("cpu kernel: a later round works on its own rows") {
  struct Watching : BlockKernel {
    mutable std::vector<int64_t> rows;
    KernelAbilities abilities() const override { return cpu_block_kernel().abilities(); }
    AttentionResult forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionSpec& spec,
                                  const std::vector<Block>& blocks) const override {
      rows.push_back(q.size(0));
      return cpu_block_kernel().forward(q, k, v, spec, blocks);
    }
    AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                       const AttentionSpec& spec,
                                       const std::vector<Block>& blocks) const override {
      return cpu_block_kernel().backward(inputs, spec, blocks);
    }
  } kernel;
  const at::Tensor q = random({30, 2, 8}), k = random({30, 1, 8});
  kernel.forward(q, k, k, spec_of(q, k), {{0, 10, 0, 10, true}, {10, 20, 10, 20, true}});
  CHECK(kernel.rows == std::vector<int64_t>{30});
  kernel.rows.clear();
  kernel.forward(q, k, k, spec_of(q, k),
                 causal_blocks(Packing::from_documents({{12, Fork{4, 9}}, {6}, {12, Fork{4, 7}}})));
  CHECK(kernel.rows == std::vector<int64_t>{30, 3 + 5});
}

TEST_CASE("cpu kernel: gradients of two halves of the keys, given the global lse, add up") {
  const at::Tensor q = random({30, 4, 8}), k = random({60, 2, 8}), v = random({60, 2, 8});
  const at::Tensor dout = random({30, 4, 8});
  const BlockKernel& kernel = cpu_block_kernel();
  const std::vector<Block> all{{0, 30, 0, 60, false}}, first{{0, 30, 0, 25, false}},
      second{{0, 30, 25, 35, false}};
  const AttentionSpec spec = spec_of(q, k);
  const AttentionResult whole = kernel.forward(q, k, v, spec, all);
  auto backward = [&](const std::vector<Block>& blocks) {
    return kernel.backward({dout, q, k, v, whole.out_TNH, whole.lse_NT}, spec, blocks);
  };
  const AttentionGradients expected = backward(all), a = backward(first), b = backward(second);
  CHECK(relative_error(a.dq_TNH + b.dq_TNH, expected.dq_TNH) < kTolerance);
  CHECK(relative_error(a.dk_SMH + b.dk_SMH, expected.dk_SMH) < kTolerance);
  CHECK(relative_error(a.dv_SMH + b.dv_SMH, expected.dv_SMH) < kTolerance);
}

TEST_CASE("cpu kernel: bf16 in, bf16 out, fp32 lse and gradients") {
  auto bf16 = [](at::IntArrayRef shape) { return random(shape).to(at::kBFloat16); };
  const at::Tensor q = bf16({300, 4, 16}), k = bf16({300, 2, 16}), v = bf16({300, 2, 16});
  const std::vector<Block> blocks{{0, 300, 0, 300, true}};
  const AttentionSpec spec = spec_of(q, k);
  const AttentionResult result = cpu_block_kernel().forward(q, k, v, spec, blocks);
  CHECK((result.out_TNH.scalar_type() == at::kBFloat16));
  CHECK((result.lse_NT.scalar_type() == at::kFloat));
  const AttentionGradients gradients = cpu_block_kernel().backward(
      {result.out_TNH, q, k, v, result.out_TNH, result.lse_NT}, spec, blocks);
  CHECK((gradients.dk_SMH.scalar_type() == at::kFloat));
  const Plain exact =
      plain_softmax(q.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), spec, blocks);
  // One rounding of the output and one of the weights, 2^-9 each at most.
  CHECK(relative_error(result.out_TNH, exact.out_TNH) < 2.0 / 512);
}

TEST_CASE("kernels refuse by name what they cannot compute, forward and backward") {
  const at::Tensor q = random({6, 2, 16}), k = random({6, 1, 16});
  const std::vector<Block> blocks{{0, 6, 0, 6, true}};
  const AttentionSpec plain = spec_of(q, k);
  const AttentionResult result = cpu_block_kernel().forward(q, k, k, plain, blocks);
  const AttentionGradientInputs gradient_inputs{q, q, k, k, result.out_TNH, result.lse_NT};
  // A kernel without optional features.
  struct Plainest : BlockKernel {
    KernelAbilities abilities() const override { return {.name = "A kernel of the tests"}; }
    AttentionResult forward_round(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                  const AttentionSpec&, const std::vector<Block>&) const override {
      return {};
    }
    AttentionGradients backward_blocks(const AttentionGradientInputs&, const AttentionSpec&,
                                       const std::vector<Block>&) const override {
      return {};
    }
  } plainest;
  AttentionSpec window = plain, softcap = plain, wider = plain, values = plain, longer = plain;
  window.window = 4;
  softcap.softcap = 30.0;
  wider.key_dim = 32;
  values.value_dim = 32;
  longer.key_dim = longer.value_dim = 512;
  const auto check = [&](const BlockKernel& kernel, const AttentionSpec& spec,
                         const char* message) {
    CHECK_THROWS_WITH_AS(kernel.forward(q, k, k, spec, blocks), doctest::Contains(message),
                         UserError);
    CHECK_THROWS_WITH_AS(kernel.backward(gradient_inputs, spec, blocks), doctest::Contains(message),
                         UserError);
  };
  check(plainest, window, "A kernel of the tests cannot compute attention with a sliding window");
  check(plainest, softcap, "A kernel of the tests cannot compute attention with a softcap");
  check(cuda_block_kernel(), longer,
        "The attention kernel of CUDA computes heads of at most 256 numbers, and a layer of the "
        "model has 512");
  for (const BlockKernel* kernel : {&cpu_block_kernel(), &cuda_block_kernel()}) {
    CHECK_THROWS_AS(kernel->forward(q, k, k, wider, blocks), c10::Error);
    CHECK_THROWS_AS(kernel->backward(gradient_inputs, values, blocks), c10::Error);
  }
  CHECK(std::string(cpu_block_kernel().abilities().name) != cuda_block_kernel().abilities().name);
}

TEST_CASE("leaf attention: replay takes what was saved, in order, and computes nothing") {
  struct Counting : BlockKernel {
    mutable int num_forwards = 0;
    KernelAbilities abilities() const override { return cpu_block_kernel().abilities(); }
    AttentionResult forward_round(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionSpec& spec,
                                  const std::vector<Block>& blocks) const override {
      ++num_forwards;
      return cpu_block_kernel().forward(q, k, v, spec, blocks);
    }
    AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                       const AttentionSpec& spec,
                                       const std::vector<Block>& blocks) const override {
      return cpu_block_kernel().backward(inputs, spec, blocks);
    }
  } kernel;
  const Packing packing = Packing::from_lengths({5, 9});
  const at::Tensor q = random({14, 4, 8}).requires_grad_(true), k = random({14, 2, 8}),
                   v = random({14, 2, 8});
  const AttentionSpec spec = spec_of(q, k);
  SavedAttention saved;
  const auto attend = [&](const at::Tensor& queries, AttentionCheckpoint checkpoint) {
    return leaf_attention(kernel, {queries, k, v}, spec, packing, checkpoint);
  };
  const auto saving = AttentionCheckpoint::saving(saved),
             replaying = AttentionCheckpoint::replaying(saved);
  const at::Tensor first = attend(q, saving), second = attend(2 * q, saving);
  CHECK(kernel.num_forwards == 2);
  CHECK(saved.results.size() == 2);
  CHECK_FALSE(saved.results[0].out_TNH.requires_grad());
  CHECK(attend(q, replaying).equal(first));
  const at::Tensor again = attend(2 * q, replaying);
  CHECK(again.equal(second));
  CHECK(kernel.num_forwards == 2);
  CHECK(saved.results.empty());
  CHECK_THROWS_AS(attend(q, replaying), std::logic_error);
  second.sum().backward();
  const at::Tensor expected = q.grad().clone();
  q.mutable_grad().zero_();
  again.sum().backward();
  CHECK(q.grad().equal(expected));
}

}  // namespace
}  // namespace longspan
