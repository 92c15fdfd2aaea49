#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/kernels/causal_conv.h"
#include "longspan/kernels/cuda_causal_conv.h"
#include "longspan/kernels/fused_op.h"
#include "longspan/memory/transfer.h"
#include "longspan/rows/row_numbers.h"

namespace longspan {
namespace {

/// A row after the tokens that its first token sees, on its device.
struct ShiftedRow {
  at::Tensor x_XC;       // X = W - 1 + T
  at::Tensor seen_TW;    // bool: whether a token sees the token at t + w
  at::Tensor weight_WC;  // in the dtype of computation

  int64_t T() const { return seen_TW.size(0); }
  int64_t W() const { return seen_TW.size(1); }
  /// Returns the inputs of tap w.
  at::Tensor at(int64_t w) const {
    return x_XC.narrow(0, w, T()).to(weight_WC.scalar_type()) * seen_TW.narrow(1, w, 1);
  }
  at::Tensor before_silu() const {
    at::Tensor sum_TC = at(0) * weight_WC[0];
    for (int64_t w = 1; w < W(); ++w) sum_TC.addcmul_(at(w), weight_WC[w]);
    return sum_TC;
  }
};

ShiftedRow shifted_row(const at::Tensor& x_TC, const ParameterRows& weight, const Packing& packing,
                       const at::Tensor& before_PC) {
  const at::ScalarType dtype = x_TC.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  ShiftedRow row;
  row.weight_WC = weight.values().flatten(1).to(dtype).t().contiguous();
  const int64_t W = row.weight_WC.size(0), P = before_PC.defined() ? before_PC.size(0) : 0;
  std::vector<at::Tensor> parts{at::zeros({W - 1 - P, x_TC.size(1)}, x_TC.options())};
  if (P > 0) parts.push_back(before_PC.to(x_TC.scalar_type()));
  parts.push_back(x_TC);
  row.x_XC = at::cat(parts);
  std::vector<int64_t> begins;
  for (int64_t d = 0; d < packing.num_documents(); ++d) {
    begins.insert(begins.end(), packing.length(d), d == 0 ? W - 1 - P : packing.begin(d) + W - 1);
  }
  const at::Tensor places_TW =
      at::arange(x_TC.size(0), at::kLong).unsqueeze(1) + at::arange(W, at::kLong);
  row.seen_TW = sent_to(places_TW.ge(at::tensor(begins, at::kLong).unsqueeze(1)), x_TC.device());
  return row;
}

/// The tensors of a kernel's launch.
cuda_rows::ConvInputs kernel_inputs(const at::Tensor& x_TC, const ParameterRows& weight,
                                    const Packing& packing, const at::Tensor& before_PC) {
  const at::Tensor taps_CW = weight.values().flatten(1).to(at::kFloat);
  const int64_t W = taps_CW.size(1), P = before_PC.defined() ? before_PC.size(0) : 0;
  const auto earlier_T = [&] {
    std::vector<uint8_t> earlier;
    earlier.reserve(x_TC.size(0));
    for (int64_t d = 0; d < packing.num_documents(); ++d) {
      const int64_t before = d == 0 ? P : 0;
      for (int64_t t = 0; t < packing.length(d); ++t) {
        earlier.push_back(static_cast<uint8_t>(std::min(t + before, W - 1)));
      }
    }
    return at::tensor(earlier, at::kByte);
  };
  return {x_TC.contiguous(), P > 0 ? before_PC.to(x_TC.scalar_type()).contiguous() : at::Tensor(),
          taps_CW.t().contiguous(),
          row_numbers(packing, RowNumbers::kEarlierTokens, {W, P}, x_TC.device(), earlier_T)};
}

/// The convolution by kernels; undefined where there are none for these tensors. A row that trains
/// saves its inputs.
at::Tensor by_kernels(const at::Tensor& x_TC, const ParameterRows& weight_C1W,
                      const Packing& packing, const at::Tensor& before_PC) {
  if (x_TC.scalar_type() == at::kDouble || x_TC.numel() == 0) return {};
  std::vector<at::Tensor> inputs{x_TC};
  if (before_PC.defined()) inputs.push_back(before_PC);
  cuda_rows::ConvInputs in;
  at::Tensor y_TC;
  {
    const c10::NoGradGuard no_grad;
    in = kernel_inputs(x_TC.detach(), weight_C1W, packing,
                       before_PC.defined() ? before_PC.detach() : before_PC);
    y_TC = at::empty(in.x_TJ.sizes(), in.x_TJ.options());
    if (!cuda_rows::causal_conv(in, y_TC)) return {};
  }
  if (!needs_backward(inputs, {weight_C1W.parameter})) return y_TC;
  return attach_backward(
      {y_TC}, inputs, {weight_C1W.parameter},
      [in = std::move(in), weight_C1W,
       before_options = before_PC.defined()
                            ? std::optional(before_PC.options().requires_grad(false))
                            : std::nullopt](const std::vector<at::Tensor>& gradients) {
        const c10::NoGradGuard no_grad;
        const auto like = [](const at::Tensor& x) {
          return x.defined() ? at::empty(x.sizes(), x.options()) : at::Tensor();
        };
        const at::Tensor dx_TC = like(in.x_TJ), dbefore_PC = like(in.before_PJ);
        const at::Tensor dweight_WC =
            cuda_rows::causal_conv_backward(in, gradients[0].contiguous(), dx_TC, dbefore_PC);
        TORCH_CHECK(dweight_WC.defined(), "the convolution's kernels are gone");
        weight_C1W.add_gradient(dweight_WC.t().unsqueeze(1));
        std::vector<at::Tensor> result{dx_TC};
        if (before_options) {
          result.push_back(dbefore_PC.defined() ? dbefore_PC.to(before_options->dtype())
                                                : at::zeros({0, dx_TC.size(1)}, *before_options));
        }
        return result;
      })[0];
}

}  // namespace

at::Tensor causal_conv_silu_composed(const at::Tensor& x_TC, const ParameterRows& weight_C1W,
                                     const Packing& packing, const at::Tensor& before_PC) {
  TORCH_CHECK(x_TC.size(0) == packing.num_tokens(), "a convolution over ", x_TC.size(0),
              " tokens of a row of ", packing.num_tokens());
  TORCH_CHECK(!before_PC.defined() || before_PC.size(0) < weight_C1W.parameter.size(2),
              "a convolution over ", weight_C1W.parameter.size(2), " tokens goes on from ",
              before_PC.size(0));
  if (at::Tensor made = by_kernels(x_TC, weight_C1W, packing, before_PC); made.defined()) {
    return made;
  }
  std::vector<at::Tensor> inputs{x_TC};
  if (before_PC.defined()) inputs.push_back(before_PC);
  ShiftedRow row;
  at::Tensor y_TC;
  {
    const c10::NoGradGuard no_grad;
    row = shifted_row(x_TC.detach(), weight_C1W, packing,
                      before_PC.defined() ? before_PC.detach() : before_PC);
    y_TC = at::silu(row.before_silu()).to(x_TC.scalar_type());
  }
  if (!needs_backward(inputs, {weight_C1W.parameter})) return y_TC;
  return attach_backward(
      {y_TC}, inputs, {weight_C1W.parameter},
      [row = std::move(row), weight_C1W, dtype = x_TC.scalar_type(),
       before = before_PC.defined()
                    ? std::optional(std::pair(before_PC.size(0), before_PC.scalar_type()))
                    : std::nullopt](const std::vector<at::Tensor>& gradients) {
        const c10::NoGradGuard no_grad;
        const int64_t T = row.T(), W = row.W();
        const at::Tensor dsum_TC =
            at::silu_backward(gradients[0].to(row.weight_WC.scalar_type()), row.before_silu());
        at::Tensor dx_XC = at::zeros(row.x_XC.sizes(), dsum_TC.options());
        std::vector<at::Tensor> dweight;
        for (int64_t w = 0; w < W; ++w) {
          dx_XC.narrow(0, w, T).add_(dsum_TC * row.seen_TW.narrow(1, w, 1) * row.weight_WC[w]);
          dweight.push_back(at::sum(dsum_TC * row.at(w), {0}, /*keepdim=*/false, at::kDouble));
        }
        weight_C1W.add_gradient(at::stack(dweight, 1).unsqueeze(1));
        std::vector<at::Tensor> result{dx_XC.narrow(0, W - 1, T).to(dtype)};
        if (before) {
          result.push_back(
              dx_XC.narrow(0, W - 1 - before->first, before->first).to(before->second));
        }
        return result;
      })[0];
}

}  // namespace longspan
