#include "longspan/kernels/delta_scan.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <vector>

#include "longspan/kernels/fused_op.h"

namespace longspan {
namespace {

/// Operands of a scan, whose chunks compute x = e + a_sign a S, then S <- decay S + b_sign b^T x +
/// f.
struct ScanInputs {
  at::Tensor a_NZCK, b_NZCK, e_NZCV, f_NZKV, decay_NZ;  // f: may be undefined
  double a_sign, b_sign;
  bool reversed;  // the last chunk first
};

/// Writes x and the states before each chunk; changes the state.
void scan_chunks(const ScanInputs& in, const at::Tensor& x_NZCV, const at::Tensor& states_NZKV,
                 const at::Tensor& state_NKV) {
  const int64_t N = in.a_NZCK.size(0), Z = in.a_NZCK.size(1);
  at::Tensor state = state_NKV;
  for (int64_t step = 0; step < Z; ++step) {
    const int64_t z = in.reversed ? Z - 1 - step : step;
    states_NZKV.select(1, z).copy_(state);
    const at::Tensor x = at::baddbmm(in.e_NZCV.select(1, z), in.a_NZCK.select(1, z), state,
                                     /*beta=*/1, /*alpha=*/in.a_sign);
    x_NZCV.select(1, z).copy_(x);
    state.mul_(in.decay_NZ.select(1, z).view({N, 1, 1}));
    state.baddbmm_(in.b_NZCK.select(1, z).transpose(1, 2), x, /*beta=*/1, /*alpha=*/in.b_sign);
    if (in.f_NZKV.defined()) state.add_(in.f_NZKV.select(1, z));
  }
}

/// Inputs of a scan and the tensors that its backward needs.
struct SavedScan {
  at::Tensor of_state_NZCK, kept_NZCK, whole_NZ, new_NZCV, states_NZKV;
};

/// The gradient G of the states runs through the chunks in reverse:
///   dnew = dnew of the caller + kept G,   G <- whole G - of_state^T dnew + d states.
std::vector<at::Tensor> backward_of_scan(const SavedScan& saved,
                                         const std::vector<at::Tensor>& gradients) {
  const at::Tensor &dstates_NZKV = gradients[0], &dnew_NZCV = gradients[1];
  const at::Tensor dinitial_NKV = gradients[2].clone(at::MemoryFormat::Contiguous),
                   down_NZCV = at::empty_like(saved.new_NZCV),
                   after_NZKV = at::empty_like(saved.states_NZKV);
  scan_chunks({.a_NZCK = saved.kept_NZCK,
               .b_NZCK = saved.of_state_NZCK,
               .e_NZCV = dnew_NZCV.contiguous(),
               .f_NZKV = dstates_NZKV.contiguous(),
               .decay_NZ = saved.whole_NZ,
               .a_sign = 1,
               .b_sign = -1,
               .reversed = true},
              down_NZCV, after_NZKV, dinitial_NKV);
  return {at::matmul(down_NZCV, saved.states_NZKV.transpose(2, 3)).neg_(), down_NZCV,
          at::matmul(saved.new_NZCV, after_NZKV.transpose(2, 3)),
          (saved.states_NZKV * after_NZKV).sum({2, 3}), dinitial_NKV};
}

}  // namespace

ScannedStates delta_scan(const at::Tensor& of_state_NZCK, const at::Tensor& own_NZCV,
                         const at::Tensor& kept_NZCK, const at::Tensor& whole_NZ,
                         const at::Tensor& initial_NKV) {
  const std::vector<at::Tensor> inputs{of_state_NZCK, own_NZCV, kept_NZCK, whole_NZ, initial_NKV};
  SavedScan saved;
  at::Tensor last_NKV;
  {
    const c10::NoGradGuard no_grad;
    const int64_t N = own_NZCV.size(0), Z = own_NZCV.size(1), K = kept_NZCK.size(3),
                  V = own_NZCV.size(3);
    const auto options = own_NZCV.options().requires_grad(false);
    saved = {of_state_NZCK.detach().contiguous(), kept_NZCK.detach().contiguous(),
             whole_NZ.detach().contiguous(), at::empty(own_NZCV.sizes(), options),
             at::empty({N, Z, K, V}, options)};
    last_NKV = initial_NKV.detach().clone(at::MemoryFormat::Contiguous);
    scan_chunks({.a_NZCK = saved.of_state_NZCK,
                 .b_NZCK = saved.kept_NZCK,
                 .e_NZCV = own_NZCV.detach().contiguous(),
                 .f_NZKV = {},
                 .decay_NZ = saved.whole_NZ,
                 .a_sign = -1,
                 .b_sign = 1,
                 .reversed = false},
                saved.new_NZCV, saved.states_NZKV, last_NKV);
  }
  if (!needs_backward(inputs, {})) return {saved.states_NZKV, saved.new_NZCV, last_NKV};
  const at::Tensor states_NZKV = saved.states_NZKV, new_NZCV = saved.new_NZCV;
  const auto results = attach_backward(
      {states_NZKV, new_NZCV, last_NKV}, inputs, {},
      [saved = SavedScan{saved.of_state_NZCK, saved.kept_NZCK, saved.whole_NZ, new_NZCV.detach(),
                         states_NZKV.detach()}](const std::vector<at::Tensor>& gradients) {
        const c10::NoGradGuard no_grad;
        return backward_of_scan(saved, gradients);
      });
  return {results[0], results[1], results[2]};
}

}  // namespace longspan
