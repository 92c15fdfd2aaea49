#include "longspan/kernels/cuda_causal_conv.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/cuda_launch.h"

namespace longspan::cuda_rows {
namespace {

/// A launch of the convolution over all tokens and channels.
struct ConvLaunch {
  int64_t vector;
  Launch launch;
  cuda::CausalConv argument;
};

/// `y_TJ`, `dy_TJ`, `dbefore_PJ`: further tensors of the launch; may be undefined.
ConvLaunch conv_launch(const ConvInputs& in, const at::Tensor& y_TJ, const at::Tensor& dy_TJ,
                       const at::Tensor& dbefore_PJ, const Kernels& kernels) {
  const int64_t T = in.x_TJ.size(0), J = in.x_TJ.size(1);
  int64_t vector = is_bf16(in.x_TJ) ? cuda::kBf16Vector : cuda::kFp32Vector;
  if (J % vector != 0 ||
      !aligned({&in.x_TJ, &in.before_PJ, &in.weight_WJ, &y_TJ, &dy_TJ, &dbefore_PJ}, vector)) {
    vector = 1;
  }
  // As many threads as the GPU holds at once, each with a run of tokens.
  constexpr int64_t kThreadsOfMultiprocessor = 1024, kLeastTokens = 16;
  const int64_t threads = J / vector,
                runs = std::max<int64_t>(
                    1, kThreadsOfMultiprocessor * kernels.num_multiprocessors() / threads),
                of_thread = std::max(kLeastTokens, (T + runs - 1) / runs);
  return {vector,
          Launch{.blocks_x = blocks_of(threads, cuda::kBlockThreads),
                 .blocks_y = blocks_of(T, of_thread),
                 .threads_x = cuda::kBlockThreads},
          cuda::CausalConv{
              .x = in.x_TJ.const_data_ptr(),
              .before = data_of(in.before_PJ),
              .weight = in.weight_WJ.const_data_ptr<float>(),
              .earlier = in.earlier_T.const_data_ptr<uint8_t>(),
              .y = y_TJ.defined() ? y_TJ.mutable_data_ptr() : nullptr,
              .num_tokens = T,
              .num_channels = static_cast<int>(J),
              .num_before = in.before_PJ.defined() ? static_cast<int>(in.before_PJ.size(0)) : 0,
              .tokens_of_thread = static_cast<int>(of_thread)}};
}

/// Returns the kernels for these tensors, or null. `more`: tensors in the dtype of x.
Kernels* conv_kernels(const ConvInputs& in, std::initializer_list<const at::Tensor*> more) {
  const auto like_x = [&](const at::Tensor* x) {
    return fit({&in.x_TJ, x}) && (!x->defined() || x->scalar_type() == in.x_TJ.scalar_type());
  };
  if (in.x_TJ.numel() == 0 || in.weight_WJ.size(0) != cuda::kConvTaps || !is_fp32(in.weight_WJ) ||
      !fit({&in.x_TJ, &in.weight_WJ}) || !like_x(&in.before_PJ) ||
      !std::ranges::all_of(more, like_x) || !fits_int(in.x_TJ.size(0)) ||
      !fits_int(in.x_TJ.size(1))) {
    return nullptr;
  }
  return kernels_of(in.x_TJ, Part::kCausalConv);
}

}  // namespace

bool causal_conv(const ConvInputs& in, const at::Tensor& y_TJ) {
  Kernels* const kernels = conv_kernels(in, {&y_TJ});
  if (kernels == nullptr) return false;
  const auto [vector, launch, argument] = conv_launch(in, y_TJ, {}, {}, *kernels);
  kernels->launch(fmt::format("causal_conv_{}_v{}", letter(in.x_TJ), vector), launch, argument);
  return true;
}

at::Tensor causal_conv_backward(const ConvInputs& in, const at::Tensor& dy_TJ,
                                const at::Tensor& dx_TJ, const at::Tensor& dbefore_PJ) {
  Kernels* const kernels = conv_kernels(in, {&dy_TJ, &dx_TJ, &dbefore_PJ});
  if (kernels == nullptr) return {};
  const auto [vector, launch, argument] = conv_launch(in, dx_TJ, dy_TJ, dbefore_PJ, *kernels);
  const at::Tensor parts_BWJ =
      at::empty({static_cast<int64_t>(launch.blocks_y), cuda::kConvTaps, in.x_TJ.size(1)},
                in.weight_WJ.options());
  kernels->launch(fmt::format("causal_conv_backward_{}_v{}", letter(in.x_TJ), vector), launch,
                  cuda::CausalConvBackward{
                      .forward = argument,
                      .dy = dy_TJ.const_data_ptr(),
                      .dx = dx_TJ.mutable_data_ptr(),
                      .dbefore = dbefore_PJ.defined() ? dbefore_PJ.mutable_data_ptr() : nullptr,
                      .dweight = parts_BWJ.mutable_data_ptr<float>()});
  return at::sum(parts_BWJ, {0}, /*keepdim=*/false, at::kDouble);
}

}  // namespace longspan::cuda_rows
