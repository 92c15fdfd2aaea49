#include "longspan/kernels/cuda_rows.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "longspan/cuda/kernels.h"
#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/cuda_launch.h"

namespace longspan::cuda_rows {
namespace {

/// Threads for a norm's row of `size` numbers: vectors of `vector` numbers over `x` threads, `y`
/// rows a block. vector 0: too long for registers.
struct RowThreads {
  int64_t vector = 0;
  unsigned x = 0, y = 0;
};
RowThreads row_threads(int64_t size, int64_t vector, bool is_aligned) {
  if (!is_aligned || size % vector != 0) vector = 1;
  const bool one = vector == 1;
  const int64_t held = one ? cuda::kVectorsOfThread<1> : cuda::kVectorsOfThread<cuda::kFp32Vector>;
  const int64_t most = one ? cuda::kMostThreads<1> : cuda::kMostThreads<cuda::kFp32Vector>;
  const int64_t needed = std::max<int64_t>(1, (size + vector * held - 1) / (vector * held));
  if (needed > most) return {};
  const unsigned x = threads_of_row(needed);
  return {vector, x, std::max(1U, cuda::kBlockThreads / x)};
}

}  // namespace

bool norm_forward(at::Tensor& rstd_T, at::Tensor& y_TD, const at::Tensor& h_TD,
                  const at::Tensor& weight_D, const at::Tensor& residual_TD, double eps) {
  if (!fit({&h_TD, &rstd_T, &y_TD, &weight_D, &residual_TD})) return false;
  if (residual_TD.defined() && residual_TD.scalar_type() != y_TD.scalar_type()) return false;
  const int64_t T = h_TD.size(0), D = h_TD.size(1);
  const int64_t vector = widest_vector({&h_TD, &y_TD});
  const RowThreads threads =
      row_threads(D, vector, aligned({&h_TD, &y_TD, &weight_D, &residual_TD}, vector));
  if (threads.vector == 0 || (rstd_T.defined() && !is_fp32(rstd_T))) return false;
  Kernels* const kernels = kernels_of(h_TD, Part::kNorm);
  if (kernels == nullptr) return false;
  const bool computes_rstd = !rstd_T.defined();
  if (computes_rstd) rstd_T = at::empty({T}, h_TD.options().dtype(at::kFloat));
  if (T == 0 || D == 0) {
    if (computes_rstd && D == 0) rstd_T.fill_(1 / std::sqrt(eps));
    return true;
  }
  const cuda::NormForward argument{.h = h_TD.const_data_ptr(),
                                   .weight = data_of(weight_D),
                                   .residual = data_of(residual_TD),
                                   .y = y_TD.defined() ? y_TD.mutable_data_ptr() : nullptr,
                                   .rstd = rstd_T.mutable_data_ptr<float>(),
                                   .num_rows = T,
                                   .size = static_cast<int>(D),
                                   .weight_is_bf16 = weight_D.defined() && is_bf16(weight_D),
                                   .eps = static_cast<float>(eps)};
  const std::string types = y_TD.defined() ? fmt::format("{}{}", letter(h_TD), letter(y_TD))
                                           : std::string(1, letter(h_TD));
  const char* const what = !y_TD.defined() ? "rms" : computes_rstd ? "both" : "scale";
  kernels->launch(
      fmt::format("norm_{}_{}_v{}", what, types, threads.vector),
      Launch{.blocks_x = blocks_of(T, threads.y), .threads_x = threads.x, .threads_y = threads.y},
      argument);
  return true;
}

bool norm_backward_out(at::Tensor& dh_TD, const at::Tensor& dy_TD, const at::Tensor& h_TD,
                       const at::Tensor& rstd_T, const at::Tensor& weight_D,
                       const at::Tensor& residual_TD, const at::Tensor& dweight_D) {
  if (!fit({&h_TD, &dh_TD, &dy_TD, &rstd_T, &weight_D, &residual_TD, &dweight_D})) return false;
  if (dh_TD.scalar_type() != h_TD.scalar_type() || !is_fp32(rstd_T) ||
      (residual_TD.defined() && residual_TD.scalar_type() != h_TD.scalar_type()) ||
      (dweight_D.defined() && !is_fp32(dweight_D))) {
    return false;
  }
  const int64_t T = h_TD.size(0), D = h_TD.size(1);
  const int64_t vector = widest_vector({&h_TD, &dy_TD});
  const RowThreads threads =
      row_threads(D, vector, aligned({&h_TD, &dh_TD, &dy_TD, &weight_D, &residual_TD}, vector));
  if (threads.vector == 0) return false;
  Kernels* const kernels = kernels_of(h_TD, Part::kNormBackward);
  if (kernels == nullptr) return false;
  if (T == 0 || D == 0) return true;
  const int64_t blocks = blocks_that_sum(*kernels, T, threads.y);
  const bool sums = dweight_D.defined();
  const at::Tensor parts_BD = sums ? at::empty({blocks, D}, dweight_D.options()) : at::Tensor();
  const cuda::NormBackward argument{.dy = dy_TD.const_data_ptr(),
                                    .h = h_TD.const_data_ptr(),
                                    .weight = weight_D.const_data_ptr(),
                                    .residual = data_of(residual_TD),
                                    .rstd = rstd_T.const_data_ptr<float>(),
                                    .dh = dh_TD.mutable_data_ptr(),
                                    .dweight = sums ? parts_BD.mutable_data_ptr<float>() : nullptr,
                                    .num_rows = T,
                                    .size = static_cast<int>(D),
                                    .weight_is_bf16 = is_bf16(weight_D)};
  const bool shares = sums && threads.y > 1;  // the block sums over several rows
  kernels->launch(
      fmt::format("norm_backward_{}{}{}_v{}", sums ? "sums_" : "", letter(h_TD), letter(dy_TD),
                  threads.vector),
      Launch{.blocks_x = static_cast<unsigned>(blocks),
             .threads_x = threads.x,
             .threads_y = threads.y,
             .shared_bytes = shares ? static_cast<unsigned>(threads.y * D * sizeof(float)) : 0},
      argument);
  if (sums) add_weight_gradients(dweight_D, parts_BD);
  return true;
}

namespace {

const char* name_of(Gate kind) {
  switch (kind) {
    case Gate::kSwiglu:
      return "swiglu";
    case Gate::kGeglu:
      return "geglu";
  }
  TORCH_CHECK(false, "no such gate");
}

bool run_gated(const char* gate, const char* what, const at::Tensor& gate_TI,
               const at::Tensor& up_TI, at::Tensor& act_TI, double slope = 0, double limit = 0) {
  const auto dtype = gate_TI.scalar_type();
  if (!fit({&gate_TI, &up_TI, &act_TI}) || up_TI.scalar_type() != dtype ||
      act_TI.scalar_type() != dtype) {
    return false;
  }
  Kernels* const kernels = kernels_of(gate_TI, Part::kGated);
  if (kernels == nullptr) return false;
  const int64_t size = gate_TI.numel(), widest = widest_vector({&gate_TI});
  if (size == 0) return true;
  const int64_t vector = aligned({&gate_TI, &up_TI, &act_TI}, widest) ? widest : 1;
  kernels->launch(fmt::format("{}_{}_{}_v{}", gate, what, letter(gate_TI), vector),
                  Launch{.blocks_x = blocks_of(size, vector * cuda::kBlockThreads),
                         .threads_x = cuda::kBlockThreads},
                  cuda::Gated{.gate = const_cast<void*>(gate_TI.const_data_ptr()),
                              .up = const_cast<void*>(up_TI.const_data_ptr()),
                              .act = act_TI.mutable_data_ptr(),
                              .size = size,
                              .slope = static_cast<float>(slope),
                              .limit = static_cast<float>(limit)});
  return true;
}

}  // namespace

bool gated_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI, Gate kind) {
  return run_gated(name_of(kind), "out", gate_TI, up_TI, out_TI);
}

bool gated_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI, Gate kind) {
  return run_gated(name_of(kind), "backward", gate_TI, up_TI, dact_TI);
}

bool clamped_swiglu_out(at::Tensor& out_TI, const at::Tensor& gate_TI, const at::Tensor& up_TI,
                        double slope, double limit) {
  return run_gated("clamped", "out", gate_TI, up_TI, out_TI, slope, limit);
}

bool clamped_swiglu_backward_(at::Tensor& gate_TI, at::Tensor& up_TI, at::Tensor& dact_TI,
                              double slope, double limit) {
  return run_gated("clamped", "backward", gate_TI, up_TI, dact_TI, slope, limit);
}

bool drop_out(at::Tensor& y_TI, const at::Tensor& x_TI, const at::Tensor& keys_T, uint64_t seed,
              int64_t limit, double scale) {
  if (!fit({&x_TI, &y_TI}) || x_TI.scalar_type() != y_TI.scalar_type() || !keys_T.is_contiguous() ||
      keys_T.device() != x_TI.device()) {
    return false;
  }
  Kernels* const kernels = kernels_of(x_TI, Part::kDropOut);
  if (kernels == nullptr) return false;
  if (x_TI.numel() == 0) return true;
  const int64_t T = x_TI.size(0), I = x_TI.size(1), widest = widest_vector({&x_TI});
  const int64_t vector = I % widest == 0 && aligned({&x_TI, &y_TI}, widest) ? widest : 1;
  const int64_t threads = (T + cuda::kDropOutRows - 1) / cuda::kDropOutRows * (I / vector);
  kernels->launch(
      fmt::format("drop_out_{}_v{}", letter(x_TI), vector),
      Launch{.blocks_x = blocks_of(threads, cuda::kBlockThreads), .threads_x = cuda::kBlockThreads},
      cuda::DropOut{.x = x_TI.const_data_ptr(),
                    .y = y_TI.mutable_data_ptr(),
                    .keys = reinterpret_cast<const long long*>(keys_T.const_data_ptr<int64_t>()),
                    .num_rows = T,
                    .num_columns = I,
                    .seed = seed,
                    .limit = static_cast<unsigned long long>(limit),
                    .scale = static_cast<float>(scale)});
  return true;
}

bool log_sum_exp_rows(const at::Tensor& logits_TV, const at::Tensor& labels_T, at::Tensor& lse_T,
                      at::Tensor& picked_T) {
  const int64_t T = logits_TV.size(0), V = logits_TV.size(1);
  if (!fit({&logits_TV}) || !is_fp32(logits_TV) || !labels_T.is_contiguous() ||
      !lse_T.is_contiguous() || !picked_T.is_contiguous() || !fits_int(V) || V == 0) {
    return false;
  }
  Kernels* const kernels = kernels_of(logits_TV, Part::kCrossEntropy);
  if (kernels == nullptr) return false;
  if (T == 0) return true;
  const bool even = V % cuda::kFp32Vector == 0 && aligned({&logits_TV}, cuda::kFp32Vector);
  const int64_t vector = even ? cuda::kFp32Vector : 1;
  const int64_t at_once =
      even ? vector * cuda::kLogitVectorsAtOnce : int64_t{cuda::kLogitScalarsAtOnce};
  const int64_t threads =
      std::clamp<int64_t>((V + at_once - 1) / at_once, 32, cuda::kLogitThreads) / 32 * 32;
  kernels->launch(
      fmt::format("log_sum_exp_v{}", vector),
      Launch{.blocks_x = static_cast<unsigned>(T), .threads_x = static_cast<unsigned>(threads)},
      cuda::LogSumExp{
          .logits = logits_TV.const_data_ptr<float>(),
          .labels = reinterpret_cast<const long long*>(labels_T.const_data_ptr<int64_t>()),
          .lse = lse_T.mutable_data_ptr<double>(),
          .picked = picked_T.mutable_data_ptr<double>(),
          .size = static_cast<int>(V)});
  return true;
}

bool cross_entropy_gradient_out(at::Tensor& out_TV, const at::Tensor& logits_TV,
                                const at::Tensor& labels_T, const at::Tensor& lse_T,
                                const at::Tensor& scale_T) {
  const int64_t T = logits_TV.size(0), V = logits_TV.size(1);
  if (!fit({&logits_TV, &out_TV, &scale_T}) || !is_fp32(logits_TV) || !is_fp32(scale_T) ||
      !labels_T.is_contiguous() || !lse_T.is_contiguous() || !fits_int(V)) {
    return false;
  }
  Kernels* const kernels = kernels_of(logits_TV, Part::kCrossEntropy);
  if (kernels == nullptr) return false;
  if (T == 0 || V == 0) return true;
  const bool even = V % cuda::kFp32Vector == 0 && aligned({&logits_TV, &out_TV}, cuda::kFp32Vector);
  const int64_t vector = even ? cuda::kFp32Vector : 1;
  const int64_t of_block = vector * cuda::kLogitVectorsOfThread * cuda::kBlockThreads;
  kernels->launch(fmt::format("cross_entropy_gradient_{}_v{}", letter(out_TV), vector),
                  Launch{.blocks_x = static_cast<unsigned>(T),
                         .blocks_y = blocks_of(V, of_block),
                         .threads_x = cuda::kBlockThreads},
                  cuda::CrossEntropyGradient{.logits = logits_TV.const_data_ptr<float>(),
                                             .out = out_TV.mutable_data_ptr(),
                                             .labels = reinterpret_cast<const long long*>(
                                                 labels_T.const_data_ptr<int64_t>()),
                                             .lse = lse_T.const_data_ptr<double>(),
                                             .scale = scale_T.const_data_ptr<float>(),
                                             .size = static_cast<int>(V)});
  return true;
}

}  // namespace longspan::cuda_rows
