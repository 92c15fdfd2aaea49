#include "longspan/models/chunked_projections.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <utility>

#include "longspan/models/fused_op.h"
#include "longspan/models/fused_rows.h"
#include "longspan/models/gemm.h"
#include "longspan/models/head_norm.h"

namespace longspan {
namespace {

/// The columns of these heads of a layer that takes all heads.
Linear columns_of(const Linear& whole, const at::Tensor& heads, int64_t head_dim,
                  at::ScalarType dtype) {
  c10::NoGradGuard no_grad;
  const auto columns = [&](const at::Tensor& x_OI) {
    return x_OI.defined() ? x_OI.unflatten(1, {-1, head_dim}).index_select(1, heads).flatten(1)
                          : x_OI;
  };
  return Linear{columns(whole.weight), {}, columns(whole.lora_a), whole.lora_b, whole.lora_scale}
      .cast(dtype);
}

}  // namespace

/// What the parts' backwards share. Each projection adds to dx; the last one takes it through the
/// norm.
struct ChunkedProjections::Shared {
  at::Tensor rstd_T, x_TD, dx_TD;
  int num_projections = 0;
  std::vector<std::function<void()>> weight_gradients;  // of the output, put off
  std::optional<PreciseSums> lora_b_sum;                // of the output's adapter, over the parts

  void run_weight_gradients() {
    for (const auto& run : std::exchange(weight_gradients, {})) run();
  }
};

ChunkedProjections::ChunkedProjections(const at::Tensor& h_TD, const BlockWeights& weights,
                                       const RowContext& row, const at::Tensor& rows_L)
    : h_TD_(h_TD),
      weights_(weights),
      row_(row),
      rows_L_(rows_L),
      shared_(std::make_shared<Shared>()) {
  c10::NoGradGuard no_grad;
  shared_->rstd_T = reciprocal_rms(h_TD, row.eps);
  x_TD_ = scale_rows(h_TD, shared_->rstd_T, weights.input_norm, row.compute_dtype);
}

AttentionProjections ChunkedProjections::as_functions() {
  AttentionProjections parts;
  parts.query = [this] {
    return heads(weights_.q_proj, weights_.q_norm, row_.num_heads, /*rotated=*/true);
  };
  parts.key = [this] {
    return heads(weights_.k_proj, weights_.k_norm, row_.num_kv_heads, /*rotated=*/true);
  };
  parts.value = [this] {
    const at::Tensor v = heads(weights_.v_proj, {}, row_.num_kv_heads, /*rotated=*/false);
    x_TD_.reset();
    return v;
  };
  parts.begin_output = [this] { return begin_output(); };
  parts.add_output = [this](const at::Tensor& y_LD, const at::Tensor& out_TnH,
                            const std::vector<int64_t>& numbers) {
    return add_output(y_LD, out_TnH, numbers);
  };
  return parts;
}

at::Tensor ChunkedProjections::heads(const Linear& proj, const at::Tensor& norm_H,
                                     int64_t num_heads, bool rotated) {
  at::Tensor x_TnH;
  HeadNorm head_norm(norm_H, row_.eps);
  {
    c10::NoGradGuard no_grad;
    x_TnH = head_norm.forward(proj.forward(x_TD_).view({h_TD_.size(0), num_heads, row_.head_dim}));
    if (rotated) rotate_(x_TnH, row_.rotary, /*inverse=*/false);
  }
  if (!needs_backward({h_TD_}, weights_.attention_parameters())) return x_TnH;
  shared_->num_projections += 1;
  const auto backward = [h_TD = h_TD_.detach(), norm = weights_.input_norm, proj = proj, head_norm,
                         rotated, shared = shared_, rotary = row_.rotary,
                         dtype = row_.compute_dtype, wants_input = h_TD_.requires_grad()](
                            std::vector<at::Tensor> gradients) mutable {
    if (!shared->x_TD.defined()) shared->x_TD = scale_rows(h_TD, shared->rstd_T, norm, dtype);
    const at::Tensor unrotated =
        rotated ? rotate(gradients[0], rotary, /*inverse=*/true) : gradients[0];
    const at::Tensor dy = head_norm.backward(unrotated).flatten(1);
    proj.add_gradients(dy, shared->x_TD);
    const bool wants_dx = wants_input || norm.requires_grad();
    if (wants_dx && shared->dx_TD.defined()) {
      proj.add_input_gradient(shared->dx_TD, dy);
    } else if (wants_dx) {
      shared->dx_TD = proj.input_gradient(dy);
    }
    if (--shared->num_projections > 0 || !wants_dx) return std::vector<at::Tensor>(1);
    shared->x_TD.reset();
    const at::Tensor dweight_D =
        norm.requires_grad() ? at::zeros(norm.sizes(), shared->rstd_T.options()) : at::Tensor();
    const at::Tensor dh_TD =
        norm_backward(std::exchange(shared->dx_TD, {}), h_TD, shared->rstd_T, norm, {}, dweight_D);
    if (dweight_D.defined()) add_gradient(norm, dweight_D);
    return wants_input ? std::vector<at::Tensor>{dh_TD} : std::vector<at::Tensor>(1);
  };
  return attach_backward({x_TnH}, {h_TD_}, weights_.attention_parameters(), backward)[0];
}

// The residual. In the backward it comes last of the output's parts: time for the gradients of
// weights, while those of the heads travel.
at::Tensor ChunkedProjections::begin_output() {
  const at::Tensor h_LD = rows_L_.defined() ? h_TD_.index_select(0, rows_L_) : h_TD_;
  const at::Tensor& bias_D = weights_.o_proj.bias;
  at::Tensor y_LD;
  {
    c10::NoGradGuard no_grad;
    y_LD = h_LD.clone();
    if (bias_D.defined()) y_LD.add_(bias_D);
  }
  const std::vector<at::Tensor> parameters = weights_.o_proj.parameters();
  if (!needs_backward({h_LD}, parameters)) return y_LD;
  const auto backward = [bias_D, shared = shared_](std::vector<at::Tensor> gradients) {
    shared->run_weight_gradients();
    if (shared->lora_b_sum) shared->lora_b_sum->finish();
    if (bias_D.defined() && bias_D.requires_grad()) {
      add_gradient(bias_D, at::sum(gradients[0], {0}, /*keepdim=*/false, gradient_dtype(bias_D)));
    }
    return gradients;
  };
  return attach_backward({y_LD}, {h_LD}, parameters, backward)[0];
}

at::Tensor ChunkedProjections::add_output(const at::Tensor& y_LD, const at::Tensor& out_TnH,
                                          const std::vector<int64_t>& numbers) {
  const Linear& whole = weights_.o_proj;
  const at::Tensor out_LnH = rows_L_.defined() ? out_TnH.index_select(0, rows_L_) : out_TnH;
  const at::Tensor index = at::tensor(numbers, at::kLong).to(out_TnH.device());
  const int64_t H = row_.head_dim;
  at::Tensor sum_LD;
  {
    c10::NoGradGuard no_grad;
    sum_LD = y_LD.detach();
    columns_of(whole, index, H, row_.compute_dtype).add_forward_(sum_LD, out_LnH.flatten(1));
  }
  if (!needs_backward({y_LD, out_LnH}, whole.parameters())) return sum_LD;
  const auto backward = [out_LnH = out_LnH.detach(), whole, index, H, shared = shared_,
                         dtype = row_.compute_dtype,
                         wants_out = out_LnH.requires_grad()](std::vector<at::Tensor> gradients) {
    const at::Tensor dsum_LD = gradients[0].to(dtype);
    shared->run_weight_gradients();
    // Once more: kept, they would be a copy of the weights for as long as the graph lives.
    const Linear part = columns_of(whole, index, H, dtype);
    at::Tensor dout;
    if (wants_out) dout = part.input_gradient(dsum_LD).view(out_LnH.sizes());
    shared->weight_gradients.push_back([=] {
      // Gradients of the part's own columns, then into the whole's.
      Linear leaves = part;
      const auto train = [](at::Tensor& x, const at::Tensor& of) {
        if (x.defined()) x = x.detach().set_requires_grad(of.requires_grad());
      };
      train(leaves.weight, whole.weight);
      train(leaves.lora_a, whole.lora_a);
      train(leaves.lora_b, whole.lora_b);
      leaves.add_gradients(dsum_LD, out_LnH.flatten(1));
      const auto into_columns = [&](const at::Tensor& x_OI, const at::Tensor& part_x) {
        if (!x_OI.defined() || !x_OI.requires_grad()) return;
        at::Tensor& sum_OI = gradient_of(x_OI);
        const at::Tensor part_OnH = part_x.grad().to(sum_OI.scalar_type()).unflatten(1, {-1, H});
        sum_OI.unflatten(1, {-1, H}).index_add_(1, index, part_OnH);
      };
      into_columns(whole.weight, leaves.weight);
      into_columns(whole.lora_a, leaves.lora_a);
      if (whole.has_adapter() && whole.lora_b.requires_grad()) {
        if (!shared->lora_b_sum) {
          const bool is_all = part.weight.sizes() == whole.weight.sizes();
          shared->lora_b_sum.emplace(std::vector{whole.lora_b}, is_all ? 1 : 2);
        }
        add_gradient(whole.lora_b, leaves.lora_b.grad());
      }
    });
    return std::vector<at::Tensor>{gradients[0], dout};
  };
  return attach_backward({sum_LD}, {y_LD, out_LnH}, whole.parameters(), backward)[0];
}

}  // namespace longspan
