// Z: chunks of a part or of the row, C: tokens of a chunk, S: tokens of a part, R: value heads of a
// key head.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/kernels/cuda_delta_rule.h"
#include "longspan/kernels/delta_chunks.h"
#include "longspan/kernels/delta_part.h"
#include "longspan/kernels/delta_scan.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/gated_delta_rule.h"
#include "longspan/rows/row_numbers.h"
#include "longspan/spec/composed_rule.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {
namespace {

/// The document of each token, int64 on the device; the last token's behind it.
struct RowDocuments {
  at::Tensor all_ZC;

  RowDocuments() = default;
  RowDocuments(const Packing& packing, const at::Device& device) {
    all_ZC = row_numbers(packing, RowNumbers::kDocuments, {}, device, [&] {
      const int64_t Z = (packing.num_tokens() + kRuleChunk - 1) / kRuleChunk;
      std::vector<int64_t> documents;
      documents.reserve(Z * kRuleChunk);
      for (int64_t d = 0; d < packing.num_documents(); ++d) {
        documents.insert(documents.end(), packing.length(d), d);
      }
      documents.resize(Z * kRuleChunk, documents.back());
      return at::tensor(documents, at::kLong).view({Z, kRuleChunk});
    });
  }
  int64_t num_chunks() const { return all_ZC.size(0); }
  at::Tensor of_chunks(int64_t begin, int64_t count) const {
    return all_ZC.narrow(0, begin, count);
  }
  /// The first token's own before the first chunk, which continues the first document.
  at::Tensor before_chunk(int64_t chunk) const {
    return all_ZC.view(-1).narrow(0, std::max<int64_t>(0, chunk * kRuleChunk - 1), 1);
  }
};

struct PartResult {
  at::Tensor out_SNV, state_NKV;
};

/// Computes a part by differentiable operations over all heads and chunks at once. Only the states
/// go from chunk to chunk.
PartResult rule_of_part(const DeltaPart& in, const at::Tensor& state_NKV) {
  constexpr int64_t C = kRuleChunk;
  const int64_t S = in.v_SNV.size(0), Z = in.documents_ZC.size(0), M = in.k_SMK.size(1),
                N = in.v_SNV.size(1), K = in.k_SMK.size(2), V = in.v_SNV.size(2), R = N / M;
  const at::ScalarType dtype = state_NKV.scalar_type();
  const at::Tensor q_MZCK = unit_heads(in.q_SMK, 1 / std::sqrt(static_cast<double>(K)), Z),
                   k_MZCK = unit_heads(in.k_SMK, 1, Z), keys_MZKC = k_MZCK.transpose(2, 3);
  const ChunkMatrices made = chunk_matrices({.g_SN = in.g_SN.to(dtype),
                                             .beta_SN = in.beta_SN.to(dtype),
                                             .qk_MZCC = at::matmul(q_MZCK, keys_MZKC),
                                             .kk_MZCC = at::matmul(k_MZCK, keys_MZKC),
                                             .documents_ZC = in.documents_ZC,
                                             .document_before_1 = in.document_before_1});
  // Returns heads of keys times a number of each token and value head.
  const auto scaled = [&](const at::Tensor& x_MZCK, const at::Tensor& factor_NZC) {
    return (x_MZCK.unsqueeze(1) * factor_NZC.reshape({M, R, Z, C, 1})).reshape({N, Z, C, K});
  };
  // Each token's update of the state: inverse (beta v - beta since k S).
  const at::Tensor v_NZCV = rows_in_chunks(in.v_SNV.to(dtype), Z);
  const ScannedStates scanned =
      delta_scan(at::matmul(made.inverse_NZCC, scaled(k_MZCK, made.beta_NZC * made.since_NZC)),
                 at::matmul(made.inverse_NZCC, made.beta_NZC.unsqueeze(3) * v_NZCV),
                 scaled(k_MZCK, made.to_end_NZC), made.whole_NZ, state_NKV);
  const at::Tensor out_NZCV = at::matmul(scaled(q_MZCK, made.since_NZC), scanned.states_NZKV) +
                              at::matmul(made.scores_NZCC, scanned.new_NZCV);
  return {out_NZCV.permute({1, 2, 0, 3}).reshape({Z * C, N, V}).narrow(0, 0, S), scanned.last_NKV};
}

/// A row's inputs and documents, and the states that its backward needs.
struct ComposedRow {
  DeltaRuleInputs inputs;
  bool by_kernels;
  RowDocuments documents;
  int64_t part_tokens;                 // tokens of a part; whole chunks
  std::vector<at::Tensor> states_NKV;  // before each part

  int64_t num_tokens() const { return inputs.v_TNV.size(0); }
  /// Whether there is nothing to compute.
  bool is_empty() const { return inputs.v_TNV.size(0) == 0 || inputs.v_TNV.size(1) == 0; }
  int64_t size_of_part(int64_t begin) const { return std::min(part_tokens, num_tokens() - begin); }

  DeltaPart part(int64_t begin) const {
    const int64_t chunk = begin / kRuleChunk;
    const auto some = [&](const at::Tensor& x) {
      return x.detach().narrow(0, begin, size_of_part(begin));
    };
    return {some(inputs.q_TMK),
            some(inputs.k_TMK),
            some(inputs.v_TNV),
            some(inputs.g_TN),
            some(inputs.beta_TN),
            documents.of_chunks(chunk,
                                std::min(part_tokens / kRuleChunk, documents.num_chunks() - chunk)),
            documents.before_chunk(chunk)};
  }
};

/// Returns the row in parts of `part_tokens` tokens; 0: as many as fit.
ComposedRow composed_row(const DeltaRuleInputs& inputs, int64_t part_tokens) {
  ComposedRow row{inputs, cuda_rows::has_delta_rule(inputs), {}, part_tokens, {}};
  const RecurrenceSpec heads{.num_key_heads = inputs.k_TMK.size(1),
                             .num_value_heads = inputs.v_TNV.size(1),
                             .key_dim = inputs.k_TMK.size(2),
                             .value_dim = inputs.v_TNV.size(2)};
  const int64_t of_values = inputs.v_TNV.element_size(), of_queries = inputs.q_TMK.element_size();
  RuleMemory memory = rule_memory(heads, of_values);
  memory.token_bytes = rule_memory(heads, of_queries).token_bytes;
  if (row.by_kernels) {
    row.inputs.v_TNV = cuda_rows::readable_values(inputs.v_TNV.detach());
    for (at::Tensor* gate : {&row.inputs.g_TN, &row.inputs.beta_TN}) {
      *gate = gate->detach().to(at::kFloat).contiguous();
    }
  } else {
    // Autograd keeps more tensors, in fp32 at least.
    memory.chunk_bytes = 2 * rule_memory(heads, std::max<int64_t>(4, of_values)).chunk_bytes;
  }
  if (part_tokens == 0) row.part_tokens = kRuleChunk * chunks_of_part(row.num_tokens(), memory);
  return row;
}

/// Writes the gradients of the inputs of a part that begins at `begin`, and replaces that of the
/// state behind it by that of the state before it. Recomputes the part with a graph.
void backward_with_graph(const ComposedRow& row, int64_t begin, at::Tensor state_NKV,
                         const at::Tensor& dout_SNV, at::Tensor& dstate_NKV,
                         const cuda_rows::PartGradients& to) {
  DeltaPart own = row.part(begin);
  std::vector<at::Tensor> leaves;
  for (at::Tensor* x : {&own.q_SMK, &own.k_SMK, &own.v_SNV, &own.g_SN, &own.beta_SN, &state_NKV}) {
    *x = x->detach().requires_grad_(true);
    leaves.push_back(*x);
  }
  const c10::AutoGradMode with_graph(true);
  const auto [out, last] = rule_of_part(own, state_NKV);
  const auto found = torch::autograd::grad(
      {out, last}, leaves, {dout_SNV.to(out.scalar_type()), dstate_NKV.to(last.scalar_type())});
  const c10::NoGradGuard no_grad;
  for (size_t i = 0;
       const at::Tensor* x : {&to.dq_SMK, &to.dk_SMK, &to.dv_SNV, &to.dg_SN, &to.dbeta_SN}) {
    x->copy_(found[i++]);
  }
  dstate_NKV = found.back();
}

/// Returns d loss / d (q, k, v, g, beta, the first state).
std::vector<at::Tensor> backward_of_parts(const ComposedRow& row, const at::Tensor& dout_TNV,
                                          at::Tensor dstate_NKV) {
  const DeltaRuleInputs& in = row.inputs;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& x : {in.q_TMK, in.k_TMK, in.v_TNV, in.g_TN, in.beta_TN}) {
    gradients.push_back(at::empty(x.sizes(), x.options().requires_grad(false)));
  }
  if (row.is_empty()) {
    for (const at::Tensor& x : gradients) x.zero_();
  }
  for (int64_t i = std::ssize(row.states_NKV) - 1; i >= 0; --i) {
    const int64_t begin = i * row.part_tokens;
    const auto some = [&](const at::Tensor& x) {
      return x.narrow(0, begin, row.size_of_part(begin));
    };
    const cuda_rows::PartGradients to{some(gradients[0]), some(gradients[1]), some(gradients[2]),
                                      some(gradients[3]), some(gradients[4])};
    if (row.by_kernels) {
      part_backward(row.part(begin), row.states_NKV[i], dstate_NKV, some(dout_TNV), to);
    } else {
      backward_with_graph(row, begin, row.states_NKV[i], some(dout_TNV), dstate_NKV, to);
    }
  }
  gradients.push_back(std::move(dstate_NKV));
  return gradients;
}

}  // namespace

DeltaRuleResult gated_delta_rule_composed(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV, int64_t part_tokens) {
  TORCH_CHECK(!packing.has_forks(), "the gated delta rule takes documents without forks");
  TORCH_CHECK(inputs.v_TNV.size(0) == packing.num_tokens(), "a gated delta rule over ",
              inputs.v_TNV.size(0), " tokens of a row of ", packing.num_tokens());
  std::vector<at::Tensor> tensors{inputs.q_TMK, inputs.k_TMK, inputs.v_TNV, inputs.g_TN,
                                  inputs.beta_TN};
  if (initial_NKV.defined()) tensors.push_back(initial_NKV);
  const bool differentiable = needs_backward(tensors, {});
  const at::ScalarType dtype = inputs.v_TNV.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t N = inputs.v_TNV.size(1), K = inputs.k_TMK.size(2), V = inputs.v_TNV.size(2);
  ComposedRow row;
  at::Tensor out_TNV, state_NKV;
  {
    const c10::NoGradGuard no_grad;
    row = composed_row(inputs, part_tokens);
    const auto options = inputs.v_TNV.options().requires_grad(false);
    state_NKV = initial_NKV.defined()
                    ? initial_NKV.detach().to(dtype).clone(at::MemoryFormat::Contiguous)
                    : at::zeros({N, K, V}, options.dtype(dtype));
    out_TNV = at::empty(inputs.v_TNV.sizes(), options);
    if (!row.is_empty()) row.documents = RowDocuments(packing, inputs.v_TNV.device());
    for (int64_t begin = 0; !row.is_empty() && begin < row.num_tokens(); begin += row.part_tokens) {
      const at::Tensor out_SNV = out_TNV.narrow(0, begin, row.size_of_part(begin));
      if (row.by_kernels) {
        if (differentiable) row.states_NKV.push_back(state_NKV.clone());
        part_forward(row.part(begin), state_NKV, out_SNV);
      } else {
        if (differentiable) row.states_NKV.push_back(state_NKV);
        auto [out, last] = rule_of_part(row.part(begin), state_NKV);
        out_SNV.copy_(out);
        state_NKV = std::move(last);
      }
    }
  }
  if (!differentiable) return {out_TNV, state_NKV};
  const auto results = attach_backward(
      {out_TNV, state_NKV}, tensors, {},
      [row = std::move(row), state_dtype = dtype, of_g = inputs.g_TN.scalar_type(),
       of_beta = inputs.beta_TN.scalar_type(),
       initial_dtype = initial_NKV.defined() ? std::optional(initial_NKV.scalar_type())
                                             : std::nullopt](std::vector<at::Tensor> gradients) {
        const c10::NoGradGuard no_grad;
        // A kernel replaces the gradient of the state.
        std::vector<at::Tensor> all =
            backward_of_parts(row, gradients[0].to(row.inputs.v_TNV.scalar_type()).contiguous(),
                              gradients[1].to(state_dtype).clone(at::MemoryFormat::Contiguous));
        all[3] = all[3].to(of_g);
        all[4] = all[4].to(of_beta);
        if (initial_dtype) {
          all.back() = all.back().to(*initial_dtype);
        } else {
          all.pop_back();
        }
        return all;
      });
  return {results[0], results[1]};
}

}  // namespace longspan
