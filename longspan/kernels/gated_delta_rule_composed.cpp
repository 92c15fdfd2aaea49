// Z: chunks of a segment or of the row, C: tokens of a chunk, S: tokens of a segment.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/gated_delta_rule.h"
#include "longspan/memory/transfer.h"
#include "longspan/spec/recurrence_spec.h"

namespace longspan {
namespace {

constexpr int64_t kChunkTokens = kRuleChunk, kSegmentTokens = kRuleSegment;
constexpr int64_t kSegmentOfChunks = kSegmentTokens / kChunkTokens;

/// Masks of the documents in each chunk: bool, on the device.
struct ChunkMasks {
  at::Tensor sees_ZCC;        // a token sees this one: earlier or itself, same document
  at::Tensor entered_ZC;      // the token's document is the last of the chunk before
  at::Tensor reaches_end_ZC;  // the token's document is the last of the chunk
  at::Tensor crossed_Z;       // one document from before the chunk to its end

  ChunkMasks narrow(int64_t begin, int64_t count) const {
    return {sees_ZCC.narrow(0, begin, count), entered_ZC.narrow(0, begin, count),
            reaches_end_ZC.narrow(0, begin, count), crossed_Z.narrow(0, begin, count)};
  }
};

int64_t chunks_of(int64_t num_tokens) { return (num_tokens + kChunkTokens - 1) / kChunkTokens; }

ChunkMasks masks_of(const Packing& packing, const at::Device& device) {
  constexpr int64_t C = kChunkTokens;
  const int64_t Z = chunks_of(packing.num_tokens());
  std::vector<int64_t> documents;
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    documents.insert(documents.end(), packing.length(d), d);
  }
  // Pads with zeros in the last document, which change nothing.
  documents.resize(Z * C, documents.back());
  const at::Tensor all = at::tensor(documents, at::kLong).view({Z, C});
  const at::Tensor last_Z = all.select(1, C - 1),
                   before_Z = at::cat({all.view(-1).narrow(0, 0, 1), last_Z.narrow(0, 0, Z - 1)});
  const ChunkMasks masks{all.unsqueeze(2).eq(all.unsqueeze(1)).tril(),
                         all.eq(before_Z.unsqueeze(1)), all.eq(last_Z.unsqueeze(1)),
                         last_Z.eq(before_Z)};
  const std::vector<at::Tensor> sent =
      sent_to({masks.sees_ZCC, masks.entered_ZC, masks.reaches_end_ZC, masks.crossed_Z}, device);
  return {sent.at(0), sent.at(1), sent.at(2), sent.at(3)};
}

/// Inputs of one segment, and the state before it.
struct SegmentInputs {
  at::Tensor q_SMK, k_SMK, v_SNV, g_SN, beta_SN, state_NKV;
};

struct SegmentResult {
  at::Tensor out_SNV, state_NKV;
};

/// Computes a segment by autograd operators, over all heads and chunks at once. Only the states go
/// from chunk to chunk.
SegmentResult rule_of_segment(const SegmentInputs& in, const ChunkMasks& masks) {
  constexpr int64_t C = kChunkTokens;
  const at::ScalarType dtype = in.state_NKV.scalar_type();
  const int64_t S = in.v_SNV.size(0), Z = masks.crossed_Z.size(0), M = in.k_SMK.size(1);
  const int64_t N = in.v_SNV.size(1), K = in.k_SMK.size(2), V = in.v_SNV.size(2), R = N / M;
  const auto chunks = [&](const at::Tensor& x_SHD) {  // -> [H, Z, C, D]
    return at::constant_pad_nd(x_SHD, {0, 0, 0, 0, 0, Z * C - S})
        .view({Z, C, x_SHD.size(1), x_SHD.size(2)})
        .permute({2, 0, 1, 3});
  };
  const auto normal = [&](const at::Tensor& x_SMK) {
    const at::Tensor x = x_SMK.to(dtype);
    return x * (x.square().sum(-1, /*keepdim=*/true) + 1e-6).rsqrt();
  };
  const auto of_value_heads = [&](const at::Tensor& x_MZCX) {  // -> [N, Z, C, X]
    return x_MZCX.unsqueeze(1).expand({M, R, Z, C, x_MZCX.size(3)}).reshape({N, Z, C, -1});
  };
  const at::Tensor q = chunks(normal(in.q_SMK) / std::sqrt(static_cast<double>(K))),
                   k = chunks(normal(in.k_SMK)), v = chunks(in.v_SNV.to(dtype)),
                   beta = chunks(in.beta_SN.to(dtype).unsqueeze(2));
  // Logarithms of decays from the chunk's begin, in fp64, since their differences are used. A
  // product, since CUDA's cumsum is not bit-reproducible.
  const at::Tensor g = chunks(in.g_SN.to(at::kDouble).unsqueeze(2)).squeeze(3);
  const at::Tensor sum = at::matmul(g, at::ones({C, C}, g.options()).triu());
  const at::Tensor all = sum.narrow(2, C - 1, 1);
  const auto decay_where = [&](const at::Tensor& mask, const at::Tensor& logarithm) {
    return logarithm.masked_fill(mask.logical_not(), -INFINITY).to(dtype).exp();
  };
  const at::Tensor decay = decay_where(masks.sees_ZCC, sum.unsqueeze(3) - sum.unsqueeze(2)),
                   since = decay_where(masks.entered_ZC, sum).unsqueeze(3),
                   to_end = decay_where(masks.reaches_end_ZC, all - sum).unsqueeze(3),
                   whole = decay_where(masks.crossed_Z, all.squeeze(2)).view({N, Z, 1, 1});
  const at::Tensor keys_T = k.transpose(2, 3), k_N = of_value_heads(k);
  const at::Tensor scores = decay * of_value_heads(at::matmul(q, keys_T));
  const at::Tensor lower = (beta * decay * of_value_heads(at::matmul(k, keys_T))).tril(-1);
  // Each token's update of the state: (1 + lower)^-1 (beta v - beta since k S).
  const at::Tensor solved = at::linalg_solve_triangular(
      lower + at::eye(C, lower.options()), at::cat({beta * v, beta * since * k_N}, 3),
      /*upper=*/false, /*left=*/true, /*unitriangular=*/true);
  const at::Tensor own = solved.narrow(3, 0, V), of_state = solved.narrow(3, V, K);
  const at::Tensor kept_T = (to_end * k_N).transpose(2, 3);
  std::vector<at::Tensor> states{in.state_NKV}, written;
  for (int64_t z = 0; z < Z; ++z) {
    written.push_back(own.select(1, z) - at::bmm(of_state.select(1, z), states.back()));
    states.push_back(whole.select(1, z) * states.back() +
                     at::bmm(kept_T.select(1, z), written.back()));
  }
  at::Tensor last_NKV = states.back();
  states.pop_back();
  const at::Tensor out = at::matmul(since * of_value_heads(q), at::stack(states, 1)) +
                         at::matmul(scores, at::stack(written, 1));
  return {out.permute({1, 2, 0, 3}).reshape({Z * C, N, V}).narrow(0, 0, S), std::move(last_NKV)};
}

/// A row's inputs and masks, and the states that its backward needs.
struct ComposedRow {
  DeltaRuleInputs inputs;
  ChunkMasks masks;
  std::vector<at::Tensor> states_NKV;  // before each segment

  int64_t num_tokens() const { return inputs.v_TNV.size(0); }
  /// Whether there is nothing to compute.
  bool is_empty() const { return inputs.v_TNV.size(0) == 0 || inputs.v_TNV.size(1) == 0; }

  SegmentInputs segment(int64_t begin, const at::Tensor& state_NKV) const {
    const int64_t size = std::min(kSegmentTokens, num_tokens() - begin);
    const auto part = [&](const at::Tensor& x) { return x.detach().narrow(0, begin, size); };
    return {part(inputs.q_TMK), part(inputs.k_TMK),   part(inputs.v_TNV),
            part(inputs.g_TN),  part(inputs.beta_TN), state_NKV};
  }
  ChunkMasks masks_from(int64_t begin) const {
    const int64_t first = begin / kChunkTokens;
    return masks.narrow(first, std::min(kSegmentOfChunks, masks.crossed_Z.size(0) - first));
  }
};

/// Returns d loss / d (q, k, v, g, beta, the first state). Recomputes each segment with a graph.
std::vector<at::Tensor> backward_of_segments(const ComposedRow& row, const at::Tensor& dout_TNV,
                                             at::Tensor dstate_NKV) {
  const DeltaRuleInputs& in = row.inputs;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& x : {in.q_TMK, in.k_TMK, in.v_TNV, in.g_TN, in.beta_TN}) {
    gradients.push_back(at::zeros(x.sizes(), x.options().requires_grad(false)));
  }
  for (int64_t i = std::ssize(row.states_NKV) - 1; i >= 0; --i) {
    const int64_t begin = i * kSegmentTokens;
    SegmentInputs own = row.segment(begin, row.states_NKV[i].detach());
    const int64_t size = own.v_SNV.size(0);
    std::vector<at::Tensor> leaves;
    for (at::Tensor* x :
         {&own.q_SMK, &own.k_SMK, &own.v_SNV, &own.g_SN, &own.beta_SN, &own.state_NKV}) {
      *x = x->detach().requires_grad_(true);
      leaves.push_back(*x);
    }
    std::vector<at::Tensor> found;
    {
      const c10::AutoGradMode with_graph(true);
      const auto [out, last] = rule_of_segment(own, row.masks_from(begin));
      found = torch::autograd::grad({out, last}, leaves,
                                    {dout_TNV.narrow(0, begin, size).to(out.scalar_type()),
                                     dstate_NKV.to(last.scalar_type())});
    }
    for (size_t x = 0; x < gradients.size(); ++x) {
      gradients[x].narrow(0, begin, size).copy_(found[x]);
    }
    dstate_NKV = found.back();
  }
  gradients.push_back(std::move(dstate_NKV));
  return gradients;
}

}  // namespace

DeltaRuleResult gated_delta_rule_composed(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV) {
  TORCH_CHECK(!packing.has_forks(), "the gated delta rule takes documents without forks");
  TORCH_CHECK(inputs.v_TNV.size(0) == packing.num_tokens(), "a gated delta rule over ",
              inputs.v_TNV.size(0), " tokens of a row of ", packing.num_tokens());
  std::vector<at::Tensor> tensors{inputs.q_TMK, inputs.k_TMK, inputs.v_TNV, inputs.g_TN,
                                  inputs.beta_TN};
  if (initial_NKV.defined()) tensors.push_back(initial_NKV);
  const bool differentiable = needs_backward(tensors, {});
  const at::ScalarType dtype = inputs.v_TNV.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t N = inputs.v_TNV.size(1), K = inputs.k_TMK.size(2), V = inputs.v_TNV.size(2);
  ComposedRow row{inputs, {}, {}};
  at::Tensor out_TNV, state_NKV;
  {
    const c10::NoGradGuard no_grad;
    const auto options = inputs.v_TNV.options().requires_grad(false);
    state_NKV = initial_NKV.defined() ? initial_NKV.detach().to(dtype, /*non_blocking=*/false,
                                                                /*copy=*/true)
                                      : at::zeros({N, K, V}, options.dtype(dtype));
    out_TNV = at::empty(inputs.v_TNV.sizes(), options);
    if (!row.is_empty()) row.masks = masks_of(packing, inputs.v_TNV.device());
    for (int64_t begin = 0; !row.is_empty() && begin < row.num_tokens(); begin += kSegmentTokens) {
      if (differentiable) row.states_NKV.push_back(state_NKV);
      auto [out, last] = rule_of_segment(row.segment(begin, state_NKV), row.masks_from(begin));
      out_TNV.narrow(0, begin, out.size(0)).copy_(out);
      state_NKV = std::move(last);
    }
  }
  if (!differentiable) return {out_TNV, state_NKV};
  const auto results = attach_backward(
      {out_TNV, state_NKV}, tensors, {},
      [row = std::move(row),
       initial_dtype = initial_NKV.defined() ? std::optional(initial_NKV.scalar_type())
                                             : std::nullopt](std::vector<at::Tensor> gradients) {
        const c10::NoGradGuard no_grad;
        std::vector<at::Tensor> all = backward_of_segments(row, gradients[0], gradients[1]);
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
