#include "longspan/kernels/gated_delta_rule.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <utility>

#include "longspan/kernels/delta_rule_head.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/storage_type.h"

namespace longspan {
namespace {

using delta_rule::Head;
using delta_rule::HeadViews;

/// Sizes of a call, and its tensors as the heads read them.
struct Problem {
  int64_t T, M, N, K, V;
  at::ScalarType dtype;  // of computation
  HeadViews all;         // q_TMK, k_TMK, v_TNV and the gates in fp64
  std::vector<int64_t> documents_T;

  int64_t values_of_key() const { return M == 0 ? 0 : N / M; }
};

at::Tensor with_contiguous_heads(const at::Tensor& x) {
  return x.stride(2) == 1 ? x : x.contiguous();
}

Problem problem_of(const DeltaRuleInputs& in, const Packing& packing) {
  Problem p{.T = in.v_TNV.size(0),
            .M = in.k_TMK.size(1),
            .N = in.v_TNV.size(1),
            .K = in.k_TMK.size(2),
            .V = in.v_TNV.size(2),
            .dtype = arithmetic_dtype(in.v_TNV.scalar_type()),
            .all = {},
            .documents_T = {}};
  TORCH_CHECK(p.T == packing.num_tokens(), "a gated delta rule over ", p.T, " tokens of a row of ",
              packing.num_tokens());
  TORCH_CHECK(!packing.has_forks(), "the gated delta rule takes documents without forks");
  TORCH_CHECK(p.N == 0 || (p.M > 0 && p.N % p.M == 0), "a gated delta rule of ", p.M,
              " key heads and ", p.N, " value heads");
  p.all = {with_contiguous_heads(in.q_TMK), with_contiguous_heads(in.k_TMK),
           with_contiguous_heads(in.v_TNV), in.g_TN.to(at::kDouble), in.beta_TN.to(at::kDouble)};
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    p.documents_T.insert(p.documents_T.end(), packing.length(d), d);
  }
  return p;
}

HeadViews head(const Problem& p, const HeadViews& all, int64_t m) {
  const int64_t R = p.values_of_key();
  return {all.q_TK.select(1, m), all.k_TK.select(1, m), all.v_TRV.narrow(1, m * R, R),
          all.g_TR.narrow(1, m * R, R), all.beta_TR.narrow(1, m * R, R)};
}

/// Calls f(A{}, m) for each key head, in parallel; in one thread where the gemms of a head use all
/// threads.
template <typename F>
void for_each_head(const Problem& p, const F& f) {
  const auto some = [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (int64_t m = begin; m < end; ++m) {
      p.dtype == at::kDouble ? f(double{}, m) : f(float{}, m);
    }
  };
  if (2 * p.M <= at::get_num_threads()) return some(0, p.M);
  at::parallel_for(0, p.M, 1, some);
}

/// Tensors saved for the backward.
struct Saved {
  Problem problem;
  at::Tensor segment_states;  // [segments, N, K, V]
  std::vector<at::ScalarType> dtypes;
};

std::vector<at::Tensor> backward(const Saved& saved, const at::Tensor& dout_TNV,
                                 const at::Tensor& dstate_NKV) {
  const c10::NoGradGuard no_grad;
  const Problem& p = saved.problem;
  const auto options = dout_TNV.options();
  const at::Tensor dout = with_contiguous_heads(dout_TNV);
  const HeadViews gradients{at::empty({p.T, p.M, p.K}, options.dtype(saved.dtypes[0])),
                            at::empty({p.T, p.M, p.K}, options.dtype(saved.dtypes[1])),
                            at::empty({p.T, p.N, p.V}, options.dtype(saved.dtypes[2])),
                            at::empty({p.T, p.N}, options.dtype(at::kDouble)),
                            at::empty({p.T, p.N}, options.dtype(at::kDouble))};
  const at::Tensor dstate = dstate_NKV.to(p.dtype).clone(at::MemoryFormat::Contiguous);
  for_each_head(p, [&](auto number, int64_t m) {
    const int64_t R = p.values_of_key();
    Head<decltype(number)> worker(p.T, R, p.K, p.V, /*backward=*/true);
    worker.backward(head(p, p.all, m), p.documents_T, dout.narrow(1, m * R, R),
                    saved.segment_states.narrow(1, m * R, R), dstate.narrow(0, m * R, R),
                    head(p, gradients, m));
  });
  return {gradients.q_TK,
          gradients.k_TK,
          gradients.v_TRV,
          gradients.g_TR.to(saved.dtypes[3]),
          gradients.beta_TR.to(saved.dtypes[4]),
          dstate};
}

}  // namespace

DeltaRuleResult gated_delta_rule(const DeltaRuleInputs& inputs, const Packing& packing,
                                 const at::Tensor& initial_NKV) {
  if (!inputs.v_TNV.is_cpu()) return gated_delta_rule_composed(inputs, packing, initial_NKV);
  std::vector<at::Tensor> tensors{inputs.q_TMK, inputs.k_TMK, inputs.v_TNV, inputs.g_TN,
                                  inputs.beta_TN};
  if (initial_NKV.defined()) tensors.push_back(initial_NKV);
  const bool differentiable = needs_backward(tensors, {});
  Saved saved;
  at::Tensor out_TNV, state_NKV;
  {
    const c10::NoGradGuard no_grad;
    saved.problem = problem_of(inputs, packing);
    const Problem& p = saved.problem;
    for (const at::Tensor& x : tensors) saved.dtypes.push_back(x.scalar_type());
    const auto options = inputs.v_TNV.options().requires_grad(false).dtype(p.dtype);
    out_TNV = at::empty({p.T, p.N, p.V}, options.dtype(inputs.v_TNV.scalar_type()));
    state_NKV = at::zeros({p.N, p.K, p.V}, options);
    if (initial_NKV.defined()) state_NKV.copy_(initial_NKV);
    if (differentiable) {
      saved.segment_states = at::empty({delta_rule::num_segments(p.T), p.N, p.K, p.V}, options);
    }
    for_each_head(p, [&](auto number, int64_t m) {
      const int64_t R = p.values_of_key();
      Head<decltype(number)> worker(p.T, R, p.K, p.V, /*backward=*/false);
      worker.forward(head(p, p.all, m), p.documents_T, out_TNV.narrow(1, m * R, R),
                     state_NKV.narrow(0, m * R, R),
                     differentiable ? saved.segment_states.narrow(1, m * R, R) : at::Tensor());
    });
  }
  if (!differentiable) return {out_TNV, state_NKV};
  const auto results = attach_backward(
      {out_TNV, state_NKV}, tensors, {},
      [saved = std::move(saved),
       has_initial = initial_NKV.defined()](std::vector<at::Tensor> gradients) {
        std::vector<at::Tensor> of_inputs = backward(saved, gradients[0], gradients[1]);
        if (has_initial) {
          of_inputs[5] = of_inputs[5].to(saved.dtypes[5]);
        } else {
          of_inputs.pop_back();
        }
        return of_inputs;
      });
  return {results[0], results[1]};
}

DeltaRuleResult gated_delta_rule_by_token(const DeltaRuleInputs& inputs, const Packing& packing,
                                          const at::Tensor& initial_NKV) {
  const at::ScalarType dtype = arithmetic_dtype(inputs.v_TNV.scalar_type());
  const int64_t N = inputs.v_TNV.size(1), V = inputs.v_TNV.size(2), K = inputs.k_TMK.size(2);
  const auto normal = [&](const at::Tensor& x_TMK) {
    const at::Tensor x = x_TMK.to(dtype);
    const at::Tensor y = x * (x.square().sum(-1, /*keepdim=*/true) + 1e-6).rsqrt();
    return y.repeat_interleave(N / x.size(1), 1);
  };
  const at::Tensor q = normal(inputs.q_TMK) / std::sqrt(static_cast<double>(K)),
                   k = normal(inputs.k_TMK), v = inputs.v_TNV.to(dtype),
                   decay = inputs.g_TN.to(dtype).exp(), beta = inputs.beta_TN.to(dtype);
  const at::Tensor zeros = at::zeros({N, K, V}, v.options());
  at::Tensor state = initial_NKV.defined() ? initial_NKV.to(dtype) : zeros;
  std::vector<at::Tensor> out;
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    if (d > 0) state = zeros;
    for (int64_t t = packing.begin(d); t < packing.end(d); ++t) {
      state = state * decay[t].view({N, 1, 1});
      const at::Tensor held_NV = (state * k[t].unsqueeze(2)).sum(1);
      const at::Tensor written_NV = beta[t].unsqueeze(1) * (v[t] - held_NV);
      state = state + k[t].unsqueeze(2) * written_NV.unsqueeze(1);
      out.push_back((state * q[t].unsqueeze(2)).sum(1));
    }
  }
  const at::Tensor out_TNV = out.empty() ? at::zeros({0, N, V}, v.options()) : at::stack(out);
  return {out_TNV.to(inputs.v_TNV.scalar_type()), state};
}

}  // namespace longspan
