// The gated delta rule by kernels, in parts, beside one token at a time in fp64. Without a GPU the
// kernels run on emulated threads. T: tokens of a row; other letters: cuda_delta_rule.h.
#include "longspan/kernels/delta_part.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <vector>

#include "longspan/kernels/delta_chunks.h"
#include "longspan/kernels/delta_scan.h"
#include "longspan/kernels/gated_delta_rule.h"
#include "longspan/spec/recurrence_spec.h"
#include "longspan/testing/gpu_check.h"
#include "longspan/testing/tolerance.h"

namespace longspan {
namespace {

using testing::AnyKernels;
using testing::on_gpu;

using RowRule = std::function<DeltaRuleResult(const DeltaRuleInputs&, const at::Tensor& state)>;

/// A row of four documents, with numbers in bf16 and gates in fp32.
struct RowCase {
  Packing packing = Packing::from_lengths({100, 28, 64, 150});
  int64_t T = packing.num_tokens(), M = 2, N = 4, K = 16, V = 8;
  std::vector<at::Tensor> inputs;
  at::Tensor dout_TNV, dstate_NKV;

  RowCase() {
    const auto numbers = [&](at::IntArrayRef sizes) {
      return at::randn(sizes, on_gpu(at::kDouble)).to(at::kBFloat16).to(at::kDouble);
    };
    const auto gate = [&] {
      return at::rand({T, N}, on_gpu(at::kDouble)).to(at::kFloat).to(at::kDouble);
    };
    inputs = {numbers({T, M, K}), numbers({T, M, K}), numbers({T, N, V}), -gate(), gate(),
              numbers({N, K, V})};
    dout_TNV = numbers({T, N, V});
    dstate_NKV = numbers({N, K, V});
  }
  /// Gradients, output and state. `dtype`: of queries, keys, values and the output.
  std::vector<at::Tensor> results_of(const RowRule& rule, at::ScalarType dtype) const {
    std::vector<at::Tensor> leaves;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const at::ScalarType own = i < 3 || dtype == at::kDouble ? dtype : at::kFloat;
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
  void check(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& other,
             const std::vector<at::Tensor>& exact) const {
    for (size_t i = 0; i < exact.size(); ++i) {
      CAPTURE(i);
      CHECK(testing::relative_error(actual[i], exact[i]) <=
            testing::allowed_error(other[i], exact[i]));
    }
  }
};

TEST_CASE("delta rule by kernels: fp32, in parts of any size") {
  at::manual_seed(45);
  const RowCase row;
  const auto exact = row.results_of(row.by_token(), at::kDouble);
  std::vector<at::Tensor> other;
  {
    const cuda::WithoutKernels composed;
    other = row.results_of(row.in_parts(4 * kRuleChunk), at::kFloat);
  }
  for (const int64_t part_tokens : {kRuleChunk, 2 * kRuleChunk, 8 * kRuleChunk}) {
    const AnyKernels kernels;
    row.check(row.results_of(row.in_parts(part_tokens), at::kFloat), other, exact);
  }
}

/// In fp64, with the roundings to bf16 of a forward by kernels: of operands and results of
/// products. Gradients pass the roundings.
DeltaRuleResult rounded_rule(const DeltaRuleInputs& in, const Packing& packing,
                             const at::Tensor& state_NKV) {
  constexpr int64_t C = kRuleChunk;
  const int64_t T = in.v_TNV.size(0), Z = (T + C - 1) / C, M = in.k_TMK.size(1),
                N = in.v_TNV.size(1), K = in.k_TMK.size(2);
  const auto rounded = [](const at::Tensor& x) {
    return x + (x.detach().to(at::kBFloat16).to(at::kDouble) - x.detach());
  };
  const auto scaled = [&](const at::Tensor& x_MZCK, const at::Tensor& factor_NZC) {
    return rounded(x_MZCK.repeat_interleave(N / M, 0) * factor_NZC.unsqueeze(3));
  };
  const at::Tensor q = unit_heads(in.q_TMK, 1 / std::sqrt(static_cast<double>(K)), Z),
                   k = unit_heads(in.k_TMK, 1, Z), turned = k.transpose(2, 3);
  std::vector<int64_t> documents;
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    documents.insert(documents.end(), packing.length(d), d);
  }
  documents.resize(Z * C, documents.back());
  const at::Tensor all = at::tensor(documents, on_gpu(at::kLong)).view({Z, C});
  const ChunkMatrices made =
      chunk_matrices({in.g_TN, in.beta_TN, at::matmul(q, turned), at::matmul(k, turned), all,
                      all.view(-1).narrow(0, 0, 1)});
  const at::Tensor inverse = rounded(made.inverse_NZCC);
  const ScannedStates scanned =
      delta_scan(rounded(at::matmul(inverse, scaled(k, made.beta_NZC * made.since_NZC))),
                 rounded(at::matmul(
                     inverse, rounded(made.beta_NZC.unsqueeze(3) * rows_in_chunks(in.v_TNV, Z)))),
                 scaled(k, made.to_end_NZC), made.whole_NZ, state_NKV);
  const at::Tensor out =
      rounded(at::matmul(scaled(q, made.since_NZC), rounded(scanned.states_NZKV)) +
              at::matmul(rounded(made.scores_NZCC), rounded(scanned.new_NZCV)));
  return {out.permute({1, 2, 0, 3}).flatten(0, 1).narrow(0, 0, T), scanned.last_NKV};
}

TEST_CASE("delta rule by kernels: bf16 rounds operands of products and sums in fp32") {
  at::manual_seed(46);
  const RowCase row;
  const auto exact = row.results_of(row.by_token(), at::kDouble);
  const auto other =
      row.results_of([&](const DeltaRuleInputs& in,
                         const at::Tensor& state) { return rounded_rule(in, row.packing, state); },
                     at::kDouble);
  const AnyKernels kernels;
  for (const int64_t part_tokens : {2 * kRuleChunk, 8 * kRuleChunk}) {
    row.check(row.results_of(row.in_parts(part_tokens), at::kBFloat16), other, exact);
  }
}

TEST_CASE("delta rule by kernels: values in fp32 of queries in bf16, as slices of a row have") {
  at::manual_seed(47);
  const RowCase row;
  const auto exact = row.results_of(row.by_token(), at::kDouble);
  const auto mixed = [&](const DeltaRuleInputs& in, const at::Tensor& state) {
    const DeltaRuleInputs other{in.q_TMK.to(at::kBFloat16), in.k_TMK.to(at::kBFloat16), in.v_TNV,
                                in.g_TN, in.beta_TN};
    return gated_delta_rule_composed(other, row.packing, state, 4 * kRuleChunk);
  };
  std::vector<at::Tensor> other;
  {
    const cuda::WithoutKernels composed;
    other = row.results_of(mixed, at::kFloat);
  }
  const AnyKernels kernels;
  row.check(row.results_of(mixed, at::kFloat), other, exact);
}

}  // namespace
}  // namespace longspan
