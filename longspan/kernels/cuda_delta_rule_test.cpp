// The kernels of the gated delta rule beside fp64, number by number: the allowed distance is the
// number of roundings on the way to a number, times the sum of its summands' sizes. Without a GPU
// the kernels run on emulated threads. The letters of shapes are those of cuda_delta_rule.h.
#include "longspan/kernels/cuda_delta_rule.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "longspan/kernels/delta_chunks.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/testing/gpu_check.h"
#include "longspan/testing/planted_waits.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using cuda_rows::OperandGradients;
using cuda_rows::PartGradients;
using cuda_rows::PartOperands;
using testing::AnyKernels;
using testing::check_within;
using testing::kRounding;
using testing::last_rounding;
using testing::on_gpu;
using testing::wide;

constexpr int64_t C = kRuleChunk;
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, on_gpu(at::kDouble)).to(dtype);
}
at::Tensor nothing(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::full(sizes, NAN, on_gpu(dtype));
}
/// Random numbers of tokens; NaN for the tokens of a chunk behind them, which are not to be read.
at::Tensor for_tokens(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  at::DimVector all(sizes);
  all[0] += C;
  return nothing(all, dtype).narrow(0, 0, sizes[0]).copy_(random(sizes));
}
/// Room for numbers of tokens, and for a chunk behind them, which is not to be written.
struct TokenRoom {
  at::Tensor all, x;

  explicit TokenRoom(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    at::DimVector larger(sizes);
    larger[0] += C;
    all = nothing(larger, dtype);
    x = all.narrow(0, 0, sizes[0]);
  }
  void check() const { CHECK(all.narrow(0, x.size(0), C).isnan().all().item<bool>()); }
};

TEST_CASE("cuda delta rule: heads of length one and their gradients") {
  const AnyKernels kernels;
  at::manual_seed(41);
  for (const at::ScalarType dtype : kTypes) {
    for (const auto& [S, K] : {std::pair{70, 128}, {64, 5}, {1, 40}}) {
      const int64_t M = 3, Z = (S + C - 1) / C;
      // Heads as parts of longer rows.
      const at::Tensor all = for_tokens({S, 2 * M * K + 1}, dtype);
      DeltaPart in;
      in.q_SMK = all.narrow(1, 0, M * K).unflatten(1, {M, K});
      in.k_SMK = all.narrow(1, M * K, M * K).unflatten(1, {M, K});
      const at::Tensor y = nothing({M, Z, 2, C, K}), dy = random({M, Z, 2, C, K});
      const TokenRoom dq({S, M, K}, dtype), dk({S, M, K}, dtype);
      const PartGradients to{dq.x, dk.x, {}, {}, {}};
      cuda_rows::unit_heads(y, in);
      cuda_rows::unit_heads_backward(to, dy, in);
      dq.check();
      dk.check();
      for (const int64_t which : {0, 1}) {
        const double scale = which == 0 ? 1 / std::sqrt(static_cast<double>(K)) : 1;
        const at::Tensor w = wide(which == 0 ? in.q_SMK : in.k_SMK),
                         r = (w.square().sum(-1, true) + 1e-6).rsqrt(),
                         exact = rows_in_chunks(w * r * scale, Z);
        // A sum of K squares, whose root halves its roundings, the scale and five operations.
        const double of_length = (static_cast<double>(K) / 2 + 6) * kRounding;
        check_within(y.select(2, which), exact, of_length * exact.abs());
        const at::Tensor d =
            wide(dy.select(2, which)).permute({1, 2, 0, 3}).reshape({Z * C, M, K}).narrow(0, 0, S);
        const at::Tensor dexact = scale * r * (d - w * (w * d).sum(-1, true) * r * r),
                         sizes =
                             scale * r * (d.abs() + w.abs() * (w * d).abs().sum(-1, true) * r * r);
        check_within(which == 0 ? to.dq_SMK : to.dk_SMK, dexact,
                     (3 * of_length + static_cast<double>(K + 4) * kRounding) * sizes +
                         last_rounding(dtype) * dexact.abs());
      }
    }
  }
}

struct ChunkSizes {
  int64_t M, N, S, Z, K, V;
};

/// A part's chunks, whose documents end within a chunk, at a chunk's end, and behind chunks.
struct Chunks : ChunkSizes {
  at::ScalarType dtype;
  DeltaPart in;
  at::Tensor products_MZACC;
  PartOperands out;
  at::Tensor dout_SNV;
  ChunkInputs in_fp64;
  ChunkMatrices exact;
  at::Tensor decay_NZCC, lower_NZCC;  // in fp64
  double most = 0;                    // of the logarithm of a decay

  Chunks(const ChunkSizes& sizes, double strength, at::ScalarType of_numbers)
      : ChunkSizes(sizes), dtype(of_numbers) {
    const at::TensorOptions fp64 = on_gpu(at::kDouble);
    at::Tensor documents = at::zeros({Z * C}, fp64.dtype(at::kLong));
    documents.narrow(0, 40, 24).fill_(1);
    documents.narrow(0, 64, Z * C - 64).fill_(2);
    documents.narrow(0, S - 20, Z * C - S + 20).fill_(3);
    const auto gate = [&] { return for_tokens({S, N}).uniform_(); };
    in = {.q_SMK = for_tokens({S, M, K}),
          .k_SMK = for_tokens({S, M, K}),
          // Values as parts of longer rows.
          .v_SNV = for_tokens({S, 4 + N * V}, dtype).narrow(1, 4, N * V).unflatten(1, {N, V}),
          .g_SN = gate().mul_(-strength),
          .beta_SN = gate(),
          .documents_ZC = documents.view({Z, C}),
          .document_before_1 = documents.narrow(0, 0, 1)};
    out = {.heads_MZACK = nothing({M, Z, 2, C, K}),
           .products_MZACC = {},
           .left_NZCL = nothing({N, Z, C, K + C}, dtype),
           .right_NZCR = nothing({N, Z, C, K + V}, dtype),
           .kept_NZCK = nothing({N, Z, C, K}, dtype),
           .inverse_NZCC = nothing({N, Z, C, C}, dtype),
           .whole_NZ = nothing({N, Z}),
           .dout_NZCV = nothing({N, Z, C, V}, dtype)};
    cuda_rows::unit_heads(out.heads_MZACK, in);
    products_MZACC =
        at::matmul(wide(out.heads_MZACK), wide(keys()).unsqueeze(2).transpose(3, 4)).to(at::kFloat);
    out.products_MZACC = products_MZACC.clone();
    dout_SNV = for_tokens({S, N, V}, dtype);
    cuda_rows::chunk_operands(out, in, dout_SNV);
    in_fp64 = {wide(in.g_SN),
               wide(in.beta_SN),
               wide(products_MZACC.select(2, 0)),
               wide(products_MZACC.select(2, 1)),
               in.documents_ZC,
               in.document_before_1};
    exact = chunk_matrices(in_fp64);
    ChunkInputs ones = in_fp64;
    ones.qk_MZCC = at::ones_like(in_fp64.qk_MZCC);
    decay_NZCC = chunk_matrices(ones).scores_NZCC;
    lower_NZCC =
        (exact.beta_NZC.unsqueeze(3) * decay_NZCC * of_value_heads(in_fp64.kk_MZCC)).tril(-1);
    most = gates(in_fp64.g_SN).sum(2).abs().max().item<double>();
  }
  at::Tensor queries() const { return out.heads_MZACK.select(2, 0); }
  at::Tensor keys() const { return out.heads_MZACK.select(2, 1); }
  at::Tensor of_value_heads(const at::Tensor& x_MZCI) const {
    return x_MZCI.repeat_interleave(N / M, 0);
  }
  at::Tensor of_key_heads(const at::Tensor& x_NZCI) const {
    return x_NZCI.view({M, N / M, Z, C, x_NZCI.size(3)}).sum(1);
  }
  at::Tensor gates(const at::Tensor& x_SN) const {
    return rows_in_chunks(x_SN.unsqueeze(2), Z).squeeze(3);
  }
  at::Tensor of_tokens(const at::Tensor& x_NZC) const {
    return x_NZC.flatten(1).narrow(1, 0, S).t();
  }
  /// Roundings of a decay: of its logarithm, and of exp.
  double roundings_of_decay() const { return most + 4; }
};

/// Calls check(chunks) for small heads of several key heads, and for heads of Qwen3.5's sizes.
template <typename Check>
void for_chunks(Check&& check) {
  for (const at::ScalarType dtype : kTypes) {
    for (const double strength : {1e-3, 0.9}) check(Chunks({2, 4, 150, 3, 12, 8}, strength, dtype));
    check(Chunks({1, 2, 100, 2, 128, 128}, 0.9, dtype));
  }
}

/// The operands by their formulas, but the inverse.
std::vector<at::Tensor> operands_of(const ChunkMatrices& made, const at::Tensor& q_NZCK,
                                    const at::Tensor& k_NZCK, const at::Tensor& v_NZCV) {
  const auto scaled = [](const at::Tensor& x, const at::Tensor& factor_NZC) {
    return x * factor_NZC.unsqueeze(3);
  };
  return {
      at::cat({scaled(q_NZCK, made.since_NZC), made.scores_NZCC}, 3),
      at::cat({-scaled(k_NZCK, made.beta_NZC * made.since_NZC), scaled(v_NZCV, made.beta_NZC)}, 3),
      scaled(k_NZCK, made.to_end_NZC), made.whole_NZ};
}

TEST_CASE("cuda delta rule: operands of chunks") {
  const AnyKernels kernels;
  at::manual_seed(42);
  for_chunks([](const Chunks& c) {
    const double of_decay = c.roundings_of_decay() * kRounding, last = last_rounding(c.dtype);
    const at::Tensor v_NZCV = rows_in_chunks(wide(c.in.v_SNV), c.Z);
    const auto exact = operands_of(c.exact, c.of_value_heads(wide(c.queries())),
                                   c.of_value_heads(wide(c.keys())), v_NZCV);
    const at::Tensor made[] = {c.out.left_NZCL, c.out.right_NZCR, c.out.kept_NZCK, c.out.whole_NZ};
    for (size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      check_within(made[i], exact[i],
                   (of_decay + 2 * kRounding + (i < 3 ? last : 0)) * exact[i].abs());
    }
    CHECK(at::equal(wide(c.out.dout_NZCV), rows_in_chunks(wide(c.dout_SNV), c.Z)));
    // (1 + L) T = 1: L has the roundings of a decay and of two products; a number of T is a sum
    // of at most C products.
    const at::Tensor T = wide(c.out.inverse_NZCC), L = c.lower_NZCC, one = at::eye(C, T.options());
    const at::Tensor products = at::matmul(L.abs(), T.abs());
    check_within(T + at::matmul(L, T), one.expand(T.sizes()),
                 (of_decay + 2 * kRounding) * products +
                     (static_cast<double>(C + 2) * kRounding + last) * (products + T.abs()));
    CHECK(at::equal(T.triu(1), at::zeros_like(T)));
  });
}

/// Gradients of g, beta, heads, products and v.
using InputGradients = std::vector<at::Tensor>;

/// The gradients by their formulas, in fp64, from inverse matrices as they are; or the sums of the
/// sizes of their summands.
InputGradients gradients_of(const Chunks& c, const OperandGradients& d,
                            const at::Tensor& inverse_NZCC, bool of_sizes) {
  const auto number = [&](const at::Tensor& x) { return of_sizes ? wide(x).abs() : wide(x); };
  const auto per_token = [](const at::Tensor& x, const at::Tensor& y) { return (x * y).sum(3); };
  const double minus = of_sizes ? 1 : -1;
  const int64_t K = c.K, V = c.V;
  const at::Tensor q = number(c.of_value_heads(c.queries())),
                   k = number(c.of_value_heads(c.keys())),
                   v = number(rows_in_chunks(c.in.v_SNV, c.Z)), dleft = number(d.dleft_NZCL),
                   dright = number(d.dright_NZCR), dkept = number(d.dkept_NZCK),
                   dqs = dleft.narrow(3, 0, K), dks = minus * dright.narrow(3, 0, K),
                   dbv = dright.narrow(3, K, V);
  const ChunkMatrices& m = c.exact;
  const at::Tensor dsince = per_token(dqs, q) + m.beta_NZC * per_token(dks, k),
                   dwhole = (number(d.held_NZLV) * number(d.dheld_NZLV))
                                .narrow(2, 0, K)
                                .sum(at::IntArrayRef{2, 3});
  const at::Tensor T = number(inverse_NZCC).transpose(2, 3), lower = number(c.lower_NZCC);
  const at::Tensor dlower =
      (minus * at::matmul(T, at::matmul(number(d.dinverse_NZCC), T))).tril(-1);
  const at::Tensor dscores = c.decay_NZCC * dleft.narrow(3, K, C),
                   dproducts = c.decay_NZCC * dlower, beta = m.beta_NZC.unsqueeze(3),
                   since = m.since_NZC.unsqueeze(3);
  const at::Tensor both = dlower * lower + dscores * number(c.of_value_heads(c.in_fp64.qk_MZCC));
  const at::Tensor of_end = per_token(dkept, k) * m.to_end_NZC, of_begin = dsince * m.since_NZC;
  const at::Tensor dsum = both.sum(3) + minus * both.sum(2) + of_begin + minus * of_end;
  const at::Tensor dg =
      dsum.flip({2}).cumsum(2).flip({2}) + of_end.sum(2, true) + (dwhole * m.whole_NZ).unsqueeze(2);
  const at::Tensor dbeta = m.since_NZC * per_token(dks, k) + per_token(dbv, v) +
                           (dproducts * number(c.of_value_heads(c.in_fp64.kk_MZCC))).sum(3);
  const auto stacked = [&](const at::Tensor& of_q, const at::Tensor& of_k) {
    return at::stack({c.of_key_heads(of_q), c.of_key_heads(of_k)}, 2);
  };
  return {c.of_tokens(dg), c.of_tokens(dbeta),
          stacked(since * dqs, m.to_end_NZC.unsqueeze(3) * dkept + beta * since * dks),
          stacked(dscores, beta * dproducts),
          (beta * dbv).permute({1, 2, 0, 3}).flatten(0, 1).narrow(0, 0, c.S)};
}

OperandGradients random_gradients(const Chunks& c) {
  const auto& [M, N, S, Z, K, V] = static_cast<const ChunkSizes&>(c);
  return {.dinverse_NZCC = random({N, Z, C, C}, c.dtype),
          .dleft_NZCL = random({N, Z, C, K + C}, c.dtype),
          .dright_NZCR = random({N, Z, C, K + V}, c.dtype),
          .dkept_NZCK = random({N, Z, C, K}, c.dtype),
          .held_NZLV = random({N, Z, K + C, V}, c.dtype),
          .dheld_NZLV = random({N, Z, K + C, V}, c.dtype)};
}

InputGradients gradients_by_kernels(const Chunks& c, const OperandGradients& d) {
  const auto& [M, N, S, Z, K, V] = static_cast<const ChunkSizes&>(c);
  const TokenRoom dv({S, N, V}, c.dtype), dg({S, N}), dbeta({S, N});
  const at::Tensor dheads = nothing({M, Z, 2, C, K});
  PartOperands out = c.out;
  out.products_MZACC = c.products_MZACC.clone();
  cuda_rows::chunk_operands_backward({{}, {}, dv.x, dg.x, dbeta.x}, dheads, d, out, c.in);
  for (const TokenRoom* room : {&dv, &dg, &dbeta}) room->check();
  return {dg.x, dbeta.x, dheads, out.products_MZACC, dv.x};
}

TEST_CASE("cuda delta rule: gradients of the operands of chunks") {
  const AnyKernels kernels;
  at::manual_seed(43);
  for_chunks([](const Chunks& c) {
    const int64_t Z = c.Z, K = c.K, V = c.V;
    const OperandGradients d = random_gradients(c);
    const InputGradients made = gradients_by_kernels(c, d),
                         exact = gradients_of(c, d, c.out.inverse_NZCC, /*of_sizes=*/false),
                         sizes = gradients_of(c, d, c.out.inverse_NZCC, /*of_sizes=*/true);
    // Two products with the inverse, sums over a head's numbers, a decay, and twenty operations.
    const double rounding =
        (static_cast<double>(2 * C + K + V) + c.roundings_of_decay() + 20) * kRounding;
    for (size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      check_within(made[i], exact[i],
                   rounding * sizes[i] + (i == 4 ? last_rounding(c.dtype) : 0) * exact[i].abs());
    }
    // The formulas are the gradients.
    InputGradients leaves{wide(c.in.g_SN), wide(c.in.beta_SN), wide(c.out.heads_MZACK),
                          wide(c.products_MZACC), wide(c.in.v_SNV)};
    for (at::Tensor& x : leaves) x = x.detach().clone().requires_grad_(true);
    const ChunkMatrices matrices =
        chunk_matrices({leaves[0], leaves[1], leaves[3].select(2, 0), leaves[3].select(2, 1),
                        c.in.documents_ZC, c.in.document_before_1});
    std::vector<at::Tensor> results =
        operands_of(matrices, c.of_value_heads(leaves[2].select(2, 0)),
                    c.of_value_heads(leaves[2].select(2, 1)), rows_in_chunks(leaves[4], Z));
    results.push_back(matrices.inverse_NZCC);
    const auto states = [&](const at::Tensor& x) { return wide(x).narrow(2, 0, K); };
    const auto found = torch::autograd::grad(
        results, leaves,
        {wide(d.dleft_NZCL), wide(d.dright_NZCR), wide(d.dkept_NZCK),
         (states(d.held_NZLV) * states(d.dheld_NZLV)).sum(at::IntArrayRef{2, 3}),
         wide(d.dinverse_NZCC)});
    const auto formulas = gradients_of(c, d, matrices.inverse_NZCC.detach(), /*of_sizes=*/false);
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      CHECK(testing::relative_error(formulas[i], found[i]) < 1e-10);
    }
  });
}

TEST_CASE("cuda emulation: each barrier that operands of chunks leave out is found") {
  if (cuda_available()) return;
  for (const at::ScalarType dtype : kTypes) {
    const auto chunks = [&](cuda::Kernels& kernels) {
      const cuda::WithKernels lent(kernels);
      at::manual_seed(48);
      return Chunks({1, 2, 100, 2, 12, 8}, 0.9, dtype);
    };
    CHECK(testing::check_waits([&](cuda::Kernels& kernels) {
            const PartOperands out = chunks(kernels).out;
            return std::vector{out.left_NZCL,    out.right_NZCR, out.kept_NZCK,
                               out.inverse_NZCC, out.whole_NZ,   out.dout_NZCV};
          }) == 4);
    testing::EmulatedKernels whole;
    const Chunks c = chunks(whole);
    const OperandGradients d = random_gradients(c);
    CHECK(testing::check_waits([&](cuda::Kernels& kernels) {
            const cuda::WithKernels lent(kernels);
            return gradients_by_kernels(c, d);
          }) == 8);
  }
}

TEST_CASE("cuda delta rule: tensors without a kernel") {
  const AnyKernels kernels;
  const auto inputs = [](int64_t K, at::ScalarType dtype) {
    const at::Tensor x = random({C, 1, K}, dtype), gate = random({C, 1});
    return DeltaRuleInputs{x, x, x, gate, gate};
  };
  CHECK(cuda_rows::has_delta_rule(inputs(128, at::kFloat)));
  CHECK(cuda_rows::has_delta_rule(inputs(128, at::kBFloat16)));
  CHECK(!cuda_rows::has_delta_rule(inputs(132, at::kFloat)));
  CHECK(!cuda_rows::has_delta_rule(inputs(6, at::kFloat)));
  CHECK(!cuda_rows::has_delta_rule(inputs(128, at::kDouble)));
  // Vectors of 4 numbers begin at multiples of 4 of them.
  const at::Tensor all = random({C, 10});
  for (const int64_t begin : {0, 1}) {
    const at::Tensor v = all.narrow(1, begin, 8).unflatten(1, {2, 4});
    CHECK(cuda_rows::readable_values(v).is_contiguous());
  }
}

}  // namespace
}  // namespace longspan
