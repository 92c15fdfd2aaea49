// The gated delta rule by kernels, in parts, beside one token at a time in fp64, number by number:
// the allowed distance follows from the roundings on the way to a number. Without a GPU the kernels
// run on emulated threads. T: tokens of a row; other letters: cuda_delta_rule.h.
#include "longspan/kernels/delta_part.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "longspan/kernels/delta_chunks.h"
#include "longspan/kernels/gated_delta_rule.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/testing/error_bound.h"
#include "longspan/testing/gpu_check.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::Bounded;
using testing::on_gpu;

using RowRule = std::function<DeltaRuleResult(const DeltaRuleInputs&, const at::Tensor& state)>;

/// A row of four documents, which begin and end within chunks and at their borders, with numbers in
/// bf16 and gates in fp32, of the CPU's generator on any device. Each head's decays are weaker than
/// those of the head before.
struct RowCase {
  Packing packing = Packing::from_lengths({90, 70, 32, 150});
  int64_t T = packing.num_tokens(), M = 2, N = 4, K = 16, V = 8;
  std::vector<at::Tensor> inputs;
  at::Tensor dout_TNV, dstate_NKV;

  RowCase() {
    const auto numbers = [&](at::IntArrayRef sizes) {
      return at::randn(sizes, at::kDouble).to(at::kBFloat16).to(on_gpu(at::kDouble));
    };
    const auto gate = [&] {
      return at::rand({T, N}, at::kDouble).to(at::kFloat).to(on_gpu(at::kDouble));
    };
    const at::Tensor strength_N = at::pow(0.5, at::arange(N, on_gpu(at::kDouble)));
    inputs = {
        numbers({T, M, K}), numbers({T, M, K}), numbers({T, N, V}), -gate() * strength_N, gate(),
        numbers({N, K, V})};
    dout_TNV = numbers({T, N, V});
    dstate_NKV = numbers({N, K, V});
  }
  /// Gradients, output and state. The dtypes: of values and the output, of queries and keys.
  std::vector<at::Tensor> results_of(const RowRule& rule, at::ScalarType of_values,
                                     at::ScalarType of_queries) const {
    std::vector<at::Tensor> leaves;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::ScalarType others = of_values == at::kDouble ? at::kDouble : at::kFloat,
                           own = i < 2    ? of_queries
                                 : i == 2 ? of_values
                                          : others;
      leaves.push_back(inputs[i].to(own).detach().clone().requires_grad_(true));
    }
    const DeltaRuleResult made =
        rule({leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]}, leaves[5]);
    std::vector<at::Tensor> all = torch::autograd::grad(
        {made.out_TNV, made.state_NKV}, leaves,
        {dout_TNV.to(made.out_TNV.scalar_type()), dstate_NKV.to(made.state_NKV.scalar_type())});
    all.push_back(made.out_TNV.detach());
    all.push_back(made.state_NKV.detach());
    return all;
  }
  /// The document of each token; the last one behind it. [num_chunks, kRuleChunk].
  at::Tensor documents(int64_t num_chunks) const {
    std::vector<int64_t> all;
    for (int64_t d = 0; d < packing.num_documents(); ++d) {
      all.insert(all.end(), packing.length(d), d);
    }
    all.resize(num_chunks * kRuleChunk, all.back());
    return at::tensor(all, on_gpu(at::kLong)).view({num_chunks, kRuleChunk});
  }
  RowRule by_token() const {
    return [this](const DeltaRuleInputs& in, const at::Tensor& state) {
      return gated_delta_rule_by_token(in, packing, state);
    };
  }
  RowRule in_parts(int64_t part_tokens) const {
    return [=, this](const DeltaRuleInputs& in, const at::Tensor& state) {
      return gated_delta_rule_composed(in, packing, state, part_tokens);
    };
  }
};

/// The numbers that a part's kernels and gemms compute for a whole row, with the bounds of their
/// roundings, in the order of RowCase::results_of(). The names are those of kernels/delta_part.cpp.
class RowBounds {
 public:
  /// `of_values`, `of_queries`: roundings of the dtypes; 0: fp32, which operations round to.
  RowBounds(const RowCase& row, double of_values, double of_queries)
      : row_(row), of_values_(of_values), of_queries_(of_queries) {}

  std::vector<Bounded> results() {
    forward();
    backward_of_products();
    backward_of_chunks();
    return results_;
  }

 private:
  static constexpr int64_t C = kRuleChunk;
  static Bounded turned(const Bounded& x) {
    return x.by([](const at::Tensor& y) { return y.transpose(-2, -1); });
  }
  static Bounded chunk(const Bounded& x, int64_t z) {
    return x.by([&](const at::Tensor& y) { return y.select(1, z); });
  }
  static Bounded all_chunks(std::vector<Bounded> of_chunks) {
    for (Bounded& x : of_chunks) x = x.by([](const at::Tensor& y) { return y.unsqueeze(1); });
    return testing::joined(of_chunks, 1);
  }
  static Bounded columns(const Bounded& x, int64_t begin, int64_t count) {
    return x.by([&](const at::Tensor& y) { return y.narrow(3, begin, count); });
  }
  static Bounded for_column(const Bounded& x) {
    return x.by([](const at::Tensor& y) { return y.unsqueeze(3); });
  }
  /// Numbers of each value head, from its key head's, and the sum over a key head's value heads.
  Bounded of_value_heads(const Bounded& x) const {
    return x.by([&](const at::Tensor& y) { return y.repeat_interleave(row_.N / row_.M, 0); });
  }
  Bounded of_key_heads(const Bounded& x) const {
    return sum(x.by([&](const at::Tensor& y) { return y.unflatten(0, {row_.M, row_.N / row_.M}); }),
               1);
  }
  Bounded in_chunks(const at::Tensor& x_TND) const {
    return testing::with_roundings(rows_in_chunks(x_TND, Z_));
  }
  Bounded gate(const at::Tensor& x_TN) const {
    return in_chunks(x_TN.unsqueeze(2)).by([](const at::Tensor& y) { return y.squeeze(3); });
  }
  Bounded of_tokens(const Bounded& x) const {
    return x.by([&](const at::Tensor& y) {
      return y.transpose(0, 1).transpose(1, 2).flatten(0, 1).narrow(0, 0, row_.T);
    });
  }
  Bounded of_values(const Bounded& x) const { return x.stored(of_values_); }
  /// Roundings of a logarithm, as large as it is, and of exp.
  static Bounded decay(const at::Tensor& exact) {
    const at::Tensor roundings = 4 - exact.clamp_min(0x1p-126).log();
    return {exact, exact * roundings * testing::kFp32Rounding};
  }

  /// Half the roundings of a sum of squares and of one more sum, a root and a division.
  Bounded inverse_length(const at::Tensor& x) const {
    return testing::with_roundings((x.square().sum(-1, true) + 1e-6).rsqrt(),
                                   static_cast<double>(row_.K) / 2 + 3);
  }
  Bounded unit_heads(const at::Tensor& x_MZCK, const Bounded& scale) const {
    return scale * inverse_length(x_MZCK) * testing::with_roundings(x_MZCK);
  }
  Bounded unit_heads_back(const at::Tensor& x_MZCK, const Bounded& scale, const Bounded& dy) const {
    const Bounded x = testing::with_roundings(x_MZCK), r = inverse_length(x_MZCK),
                  along = sum(x * dy, 3, true) * r * r;
    return (scale * r * (dy - x * along)).stored(of_queries_);
  }

  void forward() {
    const auto& in = row_.inputs;
    const auto fp64 = in[2].options();
    scale_q_ = testing::with_roundings(at::full({}, 1 / std::sqrt(double(row_.K)), fp64), 1);
    scale_k_ = testing::with_roundings(at::ones({}, fp64));
    q_MZCK_ = unit_heads(rows_in_chunks(in[0], Z_), scale_q_);
    k_MZCK_ = unit_heads(rows_in_chunks(in[1], Z_), scale_k_);
    q_ = of_value_heads(q_MZCK_), k_ = of_value_heads(k_MZCK_), v_ = in_chunks(in[2]);
    beta_ = gate(in[4]);
    qk_ = of_value_heads(matmul(q_MZCK_, turned(k_MZCK_)));
    kk_ = of_value_heads(matmul(k_MZCK_, turned(k_MZCK_)));
    const at::Tensor documents = row_.documents(Z_), ones = at::ones({row_.M, Z_, C, C}, fp64);
    const ChunkMatrices decays =
        chunk_matrices({in[3], in[4], ones, ones, documents, documents.view(-1).narrow(0, 0, 1)});
    decay_ = decay(decays.scores_NZCC), since_ = decay(decays.since_NZC);
    to_end_ = decay(decays.to_end_NZC), whole_ = decay(decays.whole_NZ);
    const Bounded lower =
        (for_column(beta_) * decay_ * kk_).by([](const at::Tensor& y) { return y.tril(-1); });
    inverse_ = of_values(testing::inverse_of_triangle(lower));
    left_ = of_values(testing::joined({q_ * for_column(since_), decay_ * qk_}, 3));
    right_ =
        of_values(testing::joined({-(for_column(beta_ * since_) * k_), for_column(beta_) * v_}, 3));
    kept_ = of_values(k_ * for_column(to_end_));
    solved_ = of_values(matmul(inverse_, right_));
    std::vector<Bounded> states, news;
    Bounded state = testing::with_roundings(in[5]);
    for (int64_t z = 0; z < Z_; ++z) {
      states.push_back(of_values(state));
      const Bounded w = chunk(columns(solved_, 0, row_.K), z),
                    made = chunk(columns(solved_, row_.K, row_.V), z) + matmul(w, state);
      news.push_back(of_values(made));
      state = scan(state, matmul(turned(chunk(kept_, z)), made), z);
    }
    states_ = all_chunks(states), news_ = all_chunks(news);
    results_ = {of_tokens(of_values(matmul(left_, joined_rows(states_, news_)))), state};
  }
  static Bounded joined_rows(const Bounded& x, const Bounded& y) {
    return testing::joined({x, y}, 2);
  }
  Bounded scan(const Bounded& state, const Bounded& added, int64_t z) const {
    const Bounded whole =
        whole_.by([&](const at::Tensor& y) { return y.select(1, z).view({row_.N, 1, 1}); });
    return whole * state + added;
  }

  /// Gradients of the operands of products.
  void backward_of_products() {
    const int64_t K = row_.K, V = row_.V;
    const Bounded dout = in_chunks(row_.dout_TNV), dheld = of_values(matmul(turned(left_), dout));
    const auto rows = [](const Bounded& x, int64_t begin, int64_t count) {
      return x.by([&](const at::Tensor& y) { return y.narrow(2, begin, count); });
    };
    dleft_ = of_values(matmul(dout, turned(joined_rows(states_, news_))));
    const Bounded dstates = rows(dheld, 0, K), dnews = rows(dheld, K, C);
    std::vector<Bounded> du(Z_), after(Z_);
    Bounded G = testing::with_roundings(row_.dstate_NKV);
    for (int64_t z = Z_ - 1; z >= 0; --z) {
      after[z] = of_values(G);
      const Bounded w = chunk(columns(solved_, 0, K), z),
                    made = chunk(dnews, z) + matmul(chunk(kept_, z), G);
      du[z] = of_values(made);
      G = scan(G, matmul(turned(w), made), z) + chunk(dstates, z);
    }
    dfirst_ = G, after_ = all_chunks(after);
    const Bounded dsolved =
        testing::joined({of_values(matmul(all_chunks(du), turned(states_))), all_chunks(du)}, 3);
    dkept_ = of_values(matmul(news_, turned(after_)));
    dinverse_ = of_values(matmul(dsolved, turned(right_)));
    const Bounded dright = of_values(matmul(turned(inverse_), dsolved));
    dright_k_ = columns(dright, 0, K), dright_v_ = columns(dright, K, V);
  }

  /// Gradients of the inputs. Sums over a chunk's tokens are fp64.
  void backward_of_chunks() {
    const int64_t K = row_.K;
    const Bounded inverse = turned(inverse_), beta = for_column(beta_),
                  dlower = -matmul(matmul(inverse, dinverse_), inverse),
                  dscores = decay_ * columns(dleft_, K, C),
                  dproducts = (decay_ * dlower).by([](const at::Tensor& y) { return y.tril(-1); }),
                  of_beta = dproducts * kk_, P = beta * of_beta + dscores * qk_;
    const auto over = [](const Bounded& x, int64_t dim) {
      return x.by([&](const at::Tensor& y) { return y.sum(dim); });
    };
    const Bounded dleft_q = columns(dleft_, 0, K), of_right = -sum(dright_k_ * k_, 3),
                  dsince = sum(dleft_q * q_, 3) + beta_ * of_right,
                  of_end = sum(dkept_ * k_, 3) * to_end_;
    const Bounded dsum = over(P, 3) - over(P, 2) + dsince * since_ - of_end;
    const auto flat = [](const at::Tensor& y) { return y.flatten(2); };
    const Bounded of_whole = for_chunk(sum(states_.by(flat) * after_.by(flat), 2) * whole_);
    const Bounded dg = dsum.by([](const at::Tensor& y) { return y.flip(2).cumsum(2).flip(2); }) +
                       of_end.by([](const at::Tensor& y) { return y.sum(2, true); }) + of_whole;
    const Bounded dbeta = since_ * of_right + sum(dright_v_ * v_, 3) + over(of_beta, 3);
    const Bounded since = for_column(since_), to_end = for_column(to_end_),
                  dqk = of_key_heads(dscores), dkk = of_key_heads(beta * dproducts);
    const Bounded dq = of_key_heads(since * dleft_q) + matmul(dqk, k_MZCK_),
                  dk = of_key_heads(to_end * dkept_ - beta * since * dright_k_) +
                       matmul(dkk, k_MZCK_) +
                       matmul(turned(joined_rows(dqk, dkk)), joined_rows(q_MZCK_, k_MZCK_));
    const std::vector<Bounded> gradients{
        of_tokens(unit_heads_back(rows_in_chunks(row_.inputs[0], Z_), scale_q_, dq)),
        of_tokens(unit_heads_back(rows_in_chunks(row_.inputs[1], Z_), scale_k_, dk)),
        of_tokens(of_values(beta * dright_v_)),
        of_tokens(dg),
        of_tokens(dbeta),
        dfirst_};
    results_.insert(results_.begin(), gradients.begin(), gradients.end());
  }
  static Bounded for_chunk(const Bounded& x_NZ) {
    return x_NZ.by([](const at::Tensor& y) { return y.unsqueeze(2); });
  }

  const RowCase& row_;
  const double of_values_, of_queries_;
  const int64_t Z_ = (row_.T + C - 1) / C;
  Bounded scale_q_, scale_k_, q_MZCK_, k_MZCK_;
  Bounded q_, k_, v_, beta_, qk_, kk_;  // of value heads
  Bounded decay_, since_, to_end_, whole_;
  Bounded inverse_, left_, right_, kept_, solved_, states_, news_, after_;
  Bounded dleft_, dright_k_, dright_v_, dkept_, dinverse_, dfirst_;
  std::vector<Bounded> results_;
};

/// The largest size (norm) of each result's bounds in that of its numbers.
using MostOfNumbers = std::array<double, 8>;

/// Compares parts of all sizes with one token at a time, and the bounds' own numbers, too.
void check_parts(at::ScalarType of_values, at::ScalarType of_queries, const MostOfNumbers& most) {
  const RowCase row;
  const auto exact = row.results_of(row.by_token(), at::kDouble, at::kDouble);
  const auto rounding = [](at::ScalarType dtype) {
    return dtype == at::kBFloat16 ? testing::kBf16Rounding : 0;
  };
  const auto bounds = RowBounds(row, rounding(of_values), rounding(of_queries)).results();
  for (size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    CHECK(testing::relative_error(bounds[i].exact, exact[i]) < 1e-12);
    CHECK((bounds[i].error.norm() / exact[i].norm()).item<double>() < most[i]);
  }
  const AnyKernels kernels;
  for (const int64_t part_tokens : {kRuleChunk, 2 * kRuleChunk, 8 * kRuleChunk}) {
    const auto actual = row.results_of(row.in_parts(part_tokens), of_values, of_queries);
    for (size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      CAPTURE(part_tokens);
      testing::check_within(actual[i], exact[i], bounds[i].error);
      CHECK(testing::relative_error(actual[i], exact[i]) < 0.25);  // where the bounds are wider
    }
  }
}

// Limits of the bounds' sizes are 1.5 times those that the row has: a wider bound would hide faults
// that it finds now. The bounds of bf16 are wide, but its kernels differ from those in fp32, whose
// bounds are not, by the storage of numbers alone. The bounds of dg are widest, since the gradients
// of a chunk's decays cancel in sums over later tokens.
TEST_CASE("delta rule by kernels: fp32, in parts of any size") {
  at::manual_seed(45);
  check_parts(at::kFloat, at::kFloat,
              {0.0027, 0.0101, 0.0003, 0.113, 0.0031, 0.00032, 0.00087, 0.00086});
}

TEST_CASE("delta rule by kernels: bf16 rounds operands of products and sums in fp32") {
  at::manual_seed(46);
  check_parts(at::kBFloat16, at::kBFloat16, {0.89, 5.1, 0.16, 66, 1.7, 0.121, 0.24, 0.33});
}

TEST_CASE("delta rule by kernels: values in fp32 of queries in bf16, as slices of a row have") {
  at::manual_seed(47);
  check_parts(at::kFloat, at::kBFloat16,
              {0.0079, 0.016, 0.00035, 0.117, 0.0042, 0.00029, 0.00096, 0.00113});
}

}  // namespace
}  // namespace longspan
