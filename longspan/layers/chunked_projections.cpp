#include "longspan/layers/chunked_projections.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <optional>
#include <utility>

#include "longspan/kernels/fused_op.h"
#include "longspan/kernels/fused_rows.h"
#include "longspan/kernels/rms_norm.h"
#include "longspan/memory/transfer.h"

namespace longspan {
namespace {

/// Returns a layer's columns for these heads.
Linear columns_of(const Linear& whole, const at::Tensor& heads, int64_t head_dim,
                  at::ScalarType dtype) {
  c10::NoGradGuard no_grad;
  const auto columns = [&](const at::Tensor& x_OI) {
    return x_OI.defined() ? x_OI.unflatten(1, {-1, head_dim}).index_select(1, heads).flatten(1)
                          : x_OI;
  };
  return Linear{.weight = columns(whole.weight),
                .bias = {},
                .lora_a = columns(whole.lora_a),
                .lora_b = whole.lora_b,
                .lora_scale = whole.lora_scale,
                .magnitude = whole.magnitude,
                .lengths_O = whole.with_lengths().lengths_O}
      .cast(dtype);
}

}  // namespace

/// State that the backwards of the parts share. Each projection adds to dx. The last one takes it
/// through the norm.
struct ChunkedProjections::Shared {
  at::Tensor rstd_T, x_TD, dx_TD;
  int num_projections = 0;
  std::vector<std::function<void()>> weight_gradients;  // of the output, deferred
  std::optional<PreciseSums> output_sums;               // of the output's adapter, over the parts

  void run_weight_gradients() {
    for (const auto& run : std::exchange(weight_gradients, {})) run();
  }
};

ChunkedProjections::ChunkedProjections(const at::Tensor& h_TD, const Layer& layer,
                                       const RowContext& row, const at::Tensor& rows_L)
    : h_TD_(h_TD),
      layer_(layer),
      row_(row),
      rows_L_(rows_L),
      overlap_(layer.mixer->overlap().value()),
      shared_(std::make_shared<Shared>()) {
  c10::NoGradGuard no_grad;
  const NormalizedRows normal =
      normalize_rows(h_TD, layer.mixer_norm_factors(), layer.norm_eps, row.compute_dtype);
  shared_->rstd_T = normal.rstd_T;
  x_TD_ = normal.y_TD;
}

AttentionProjections ChunkedProjections::as_functions() {
  AttentionProjections parts;
  parts.query = [this] { return input(0); };
  parts.key = [this] { return input(1); };
  parts.value = [this] {
    const at::Tensor v = input(2);
    x_TD_.reset();
    return v;
  };
  parts.begin_output = [this] { return begin_output(); };
  parts.sinks_N = as_input(overlap_.sinks_N);
  parts.add_output = [this](const at::Tensor& y_LD, const at::Tensor& out_TnH,
                            const std::vector<int64_t>& numbers) {
    return add_output(y_LD, out_TnH, numbers);
  };
  return parts;
}

at::Tensor ChunkedProjections::input(int i) {
  const RowRange all{0, h_TD_.size(0)};
  const TokenMixer& mixer = *layer_.mixer;
  at::Tensor x_TnH;
  SavedStep saved;
  {
    c10::NoGradGuard no_grad;
    x_TnH =
        mixer.input(i, mixer.empty_input(i, all.size, x_TD_.options()), {x_TD_, all, row_}, &saved);
  }
  if (!needs_backward({h_TD_}, layer_.mixer_parameters())) return x_TnH;
  shared_->num_projections += 1;
  const auto backward = [i, h_TD = h_TD_.detach(), layer = layer_, row = row_, all,
                         saved = std::move(saved), shared = shared_,
                         wants_input = h_TD_.requires_grad()](std::vector<at::Tensor> gradients) {
    const at::Tensor &norm_D = layer.mixer_norm_D, factors_D = layer.mixer_norm_factors();
    if (!shared->x_TD.defined()) {
      shared->x_TD = scale_rows(h_TD, shared->rstd_T, factors_D, row.compute_dtype);
    }
    const bool wants_dx = wants_input || norm_D.requires_grad();
    layer.mixer->input_backward(i, gradients[0], {shared->x_TD, all, row}, &saved,
                                wants_dx ? &shared->dx_TD : nullptr);
    if (--shared->num_projections > 0 || !wants_dx) return std::vector<at::Tensor>(1);
    shared->x_TD.reset();
    const at::Tensor dweight_D = zeros_for_norm(norm_D, shared->rstd_T.options());
    const at::Tensor dh_TD = norm_backward(std::exchange(shared->dx_TD, {}), h_TD, shared->rstd_T,
                                           factors_D, {}, dweight_D);
    if (dweight_D.defined()) add_gradient(norm_D, dweight_D);
    return wants_input ? std::vector<at::Tensor>{dh_TD} : std::vector<at::Tensor>(1);
  };
  return attach_backward({x_TnH}, {h_TD_}, layer_.mixer_parameters(), backward)[0];
}

// Adds the residual. Its backward runs last of the output's parts. It computes gradients of weights
// while gradients of heads travel.
at::Tensor ChunkedProjections::begin_output() {
  const at::Tensor h_LD = rows_L_.defined() ? h_TD_.index_select(0, rows_L_) : h_TD_;
  const at::Tensor& bias_D = overlap_.linear->bias;
  at::Tensor y_LD;
  {
    c10::NoGradGuard no_grad;
    y_LD = h_LD.clone();
    if (bias_D.defined()) y_LD.add_(bias_D);
  }
  const std::vector<at::Tensor> parameters = overlap_.linear->parameters();
  if (!needs_backward({h_LD}, parameters)) return y_LD;
  const auto backward = [bias_D, shared = shared_](std::vector<at::Tensor> gradients) {
    shared->run_weight_gradients();
    if (shared->output_sums) shared->output_sums->finish();
    if (bias_D.defined() && bias_D.requires_grad()) {
      add_gradient(bias_D, at::sum(gradients[0], {0}, /*keepdim=*/false, gradient_dtype(bias_D)));
    }
    return gradients;
  };
  return attach_backward({y_LD}, {h_LD}, parameters, backward)[0];
}

at::Tensor ChunkedProjections::add_output(const at::Tensor& y_LD, const at::Tensor& out_TnH,
                                          const std::vector<int64_t>& numbers) {
  const Linear& whole = *overlap_.linear;
  const at::Tensor out_LnH = rows_L_.defined() ? out_TnH.index_select(0, rows_L_) : out_TnH;
  const at::Tensor index = sent_to(at::tensor(numbers, at::kLong), out_TnH.device());
  const int64_t H = overlap_.attention.value_dim;
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
    // Cuts the columns again, since a captured copy would live as long as the graph.
    const Linear part = columns_of(whole, index, H, dtype);
    at::Tensor dout;
    if (wants_out) dout = part.input_gradient(dsum_LD).view(out_LnH.sizes());
    shared->weight_gradients.push_back([=] {
      // Computes gradients of the part's columns, then adds them to the whole's.
      Linear leaves = part;
      const auto train = [](at::Tensor& x, const at::Tensor& of) {
        if (x.defined()) x = x.detach().set_requires_grad(of.requires_grad());
      };
      train(leaves.weight, whole.weight);
      train(leaves.lora_a, whole.lora_a);
      train(leaves.lora_b, whole.lora_b);
      train(leaves.magnitude, whole.magnitude);
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
        if (!shared->output_sums) {
          const bool is_all = part.weight.sizes() == whole.weight.sizes();
          shared->output_sums.emplace(std::vector{whole.lora_b, whole.magnitude}, is_all ? 1 : 2);
        }
        add_gradient(whole.lora_b, leaves.lora_b.grad());
        if (whole.magnitude.defined()) add_gradient(whole.magnitude, leaves.magnitude.grad());
      }
    });
    return std::vector<at::Tensor>{gradients[0], dout};
  };
  return attach_backward({sum_LD}, {y_LD, out_LnH}, whole.parameters(), backward)[0];
}

}  // namespace longspan
