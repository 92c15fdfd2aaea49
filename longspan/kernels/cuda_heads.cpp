#include "longspan/kernels/cuda_rows.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>

#include "longspan/cuda/kernels.h"
#include "longspan/cuda/rows/arguments.h"
#include "longspan/kernels/cuda_launch.h"

namespace longspan::cuda_rows {
namespace {

const char* name_of_pairs(RotaryPairs pairs) {
  switch (pairs) {
    case RotaryPairs::kHalves:
      return "halves";
    case RotaryPairs::kNeighbours:
      return "neighbours";
  }
  TORCH_CHECK(false, "no such pairs of a rotation");
}

cuda::HeadPlaces places_of(const at::Tensor& x_TNH) { return {x_TNH.stride(0), x_TNH.stride(1)}; }

/// Whether each head is contiguous, for any strides between heads, in tensors of one dtype that a
/// kernel takes.
bool are_heads(const at::Tensor& x_TNH, const at::Tensor& y_TNH) {
  return x_TNH.device() == y_TNH.device() && x_TNH.scalar_type() == y_TNH.scalar_type() &&
         (is_fp32(x_TNH) || is_bf16(x_TNH)) && (x_TNH.stride(2) == 1 || x_TNH.size(2) <= 1) &&
         x_TNH.stride(0) >= 0 && x_TNH.stride(1) >= 0 && fits_int(x_TNH.size(1) * x_TNH.size(2));
}

bool fits(const RotaryTable& table, const at::Tensor& x_TNH) {
  return table.cos_TF.device() == x_TNH.device() && fit({&table.cos_TF, &table.sin_TF}) &&
         is_fp32(table.cos_TF) && is_fp32(table.sin_TF);
}

/// Numbers of one access to all of these heads, which have one dtype.
int64_t vector_of(std::initializer_list<const at::Tensor*> heads, const RotaryTable& table) {
  const int64_t widest = widest_vector(heads);
  const bool even = table.cos_TF.size(1) % widest == 0 && aligned(heads, widest) &&
                    aligned({&table.cos_TF, &table.sin_TF}, cuda::kFp32Vector) &&
                    std::ranges::all_of(heads, [&](const at::Tensor* x_TNH) {
                      return x_TNH->size(2) % widest == 0 && x_TNH->stride(0) % widest == 0 &&
                             x_TNH->stride(1) % widest == 0;
                    });
  return even ? widest : 1;
}

/// Threads for heads that are normed and rotated: `x` threads a head, `y` heads a block.
struct HeadThreads {
  unsigned x = 0, y = 0;  // 0: too long for a block
};
HeadThreads head_threads(int64_t head_dim, int64_t num_pairs, int64_t vector) {
  // As in PairOfVectors (cuda/rows/norm_rotary.cu).
  const int64_t rest = (head_dim - 2 * num_pairs) / vector;
  const int64_t pairs = num_pairs / vector + (rest + 1) / 2;
  const unsigned x = threads_of_row(
      std::max<int64_t>(1, (pairs + cuda::kPairsOfThread - 1) / cuda::kPairsOfThread));
  if (x > cuda::kBlockThreads) return {};
  return {x, cuda::kBlockThreads / x};
}

}  // namespace

bool rotate_out(at::Tensor& y_TNH, const at::Tensor& x_TNH, const RotaryTable& table,
                bool inverse) {
  if (!fits(table, y_TNH) || !y_TNH.is_contiguous() || !are_heads(x_TNH, y_TNH)) return false;
  const int64_t T = x_TNH.size(0), N = x_TNH.size(1), H = x_TNH.size(2), F = table.cos_TF.size(1);
  const int64_t vector = vector_of({&x_TNH, &y_TNH}, table);
  Kernels* const kernels = kernels_of(y_TNH, Part::kRotary);
  if (kernels == nullptr) return false;
  const bool copies_rest = x_TNH.const_data_ptr() != y_TNH.const_data_ptr();
  const int64_t items = N * (F + (copies_rest ? H - 2 * F : 0)) / vector;
  if (T == 0 || items == 0) return true;
  const auto x = static_cast<unsigned>(
      std::min<uint64_t>(cuda::kBlockThreads, std::bit_ceil(static_cast<uint64_t>(items))));
  const unsigned y = cuda::kBlockThreads / x;
  kernels->launch(
      fmt::format("rotate_{}_{}_v{}", name_of_pairs(table.pairs), letter(y_TNH), vector),
      Launch{.blocks_x = blocks_of(T, y), .threads_x = x, .threads_y = y},
      cuda::Rotate{.x = x_TNH.const_data_ptr(),
                   .y = y_TNH.mutable_data_ptr(),
                   .cos = table.cos_TF.const_data_ptr<float>(),
                   .sin = table.sin_TF.const_data_ptr<float>(),
                   .num_rows = T,
                   .at_x = places_of(x_TNH),
                   .num_heads = static_cast<int>(N),
                   .head_dim = static_cast<int>(H),
                   .num_pairs = static_cast<int>(F),
                   .copies_rest = copies_rest,
                   .sign = inverse ? -1.0F : 1.0F});
  return true;
}

bool norm_rotate_out(at::Tensor& y_TNH, at::Tensor* rstd_R, const at::Tensor& x_TNH,
                     const at::Tensor& weight_H, const RotaryTable& table, double eps) {
  const int64_t T = x_TNH.size(0), N = x_TNH.size(1), H = x_TNH.size(2), F = table.cos_TF.size(1);
  if (table.pairs != RotaryPairs::kHalves || !fits(table, x_TNH) || !are_heads(x_TNH, y_TNH) ||
      !are_heads(y_TNH, x_TNH) || !fit({&weight_H}) || weight_H.device() != x_TNH.device() ||
      !fits_int(T * N)) {
    return false;
  }
  int64_t vector = vector_of({&x_TNH, &y_TNH}, table);
  if (!aligned({&weight_H}, vector)) vector = 1;
  const HeadThreads threads = head_threads(H, F, vector);
  Kernels* const kernels = threads.x > 0 ? kernels_of(x_TNH, Part::kNormRotary) : nullptr;
  if (kernels == nullptr) return false;
  if (rstd_R != nullptr) *rstd_R = at::empty({T * N}, x_TNH.options().dtype(at::kFloat));
  if (x_TNH.numel() == 0) {
    if (rstd_R != nullptr) rstd_R->fill_(1 / std::sqrt(eps));
    return true;
  }
  kernels->launch(
      fmt::format("norm_rotate_{}_v{}", letter(x_TNH), vector),
      Launch{
          .blocks_x = blocks_of(T * N, threads.y), .threads_x = threads.x, .threads_y = threads.y},
      cuda::NormRotate{.x = x_TNH.const_data_ptr(),
                       .y = y_TNH.mutable_data_ptr(),
                       .weight = weight_H.const_data_ptr(),
                       .cos = table.cos_TF.const_data_ptr<float>(),
                       .sin = table.sin_TF.const_data_ptr<float>(),
                       .rstd = rstd_R != nullptr ? rstd_R->mutable_data_ptr<float>() : nullptr,
                       .at_x = places_of(x_TNH),
                       .at_y = places_of(y_TNH),
                       .num_all = static_cast<int>(T * N),
                       .num_heads = static_cast<int>(N),
                       .head_dim = static_cast<int>(H),
                       .num_pairs = static_cast<int>(F),
                       .weight_is_bf16 = is_bf16(weight_H),
                       .eps = static_cast<float>(eps)});
  return true;
}

bool norm_rotate_backward_out(at::Tensor& dx_TNH, const at::Tensor& dy_TNH, const at::Tensor& x_TNH,
                              const at::Tensor& rstd_R, const at::Tensor& weight_H,
                              const RotaryTable& table, double eps, const at::Tensor& dweight_H) {
  const int64_t T = x_TNH.size(0), N = x_TNH.size(1), H = x_TNH.size(2), F = table.cos_TF.size(1);
  if (table.pairs != RotaryPairs::kHalves || !fits(table, x_TNH) || !are_heads(x_TNH, dx_TNH) ||
      !are_heads(dy_TNH, x_TNH) || !dx_TNH.is_contiguous() ||
      !fit({&weight_H, &rstd_R, &dweight_H}) || weight_H.device() != x_TNH.device() ||
      (rstd_R.defined() && !is_fp32(rstd_R)) || (dweight_H.defined() && !is_fp32(dweight_H)) ||
      !fits_int(T * N)) {
    return false;
  }
  int64_t vector = vector_of({&x_TNH, &dy_TNH, &dx_TNH}, table);
  if (!aligned({&weight_H}, vector)) vector = 1;
  const HeadThreads threads = head_threads(H, F, vector);
  Kernels* const kernels = threads.x > 0 ? kernels_of(x_TNH, Part::kNormRotary) : nullptr;
  const bool sums = dweight_H.defined();
  if (kernels == nullptr || (sums && kernels_of(x_TNH, Part::kNormBackward) == nullptr)) {
    return false;
  }
  if (x_TNH.numel() == 0) return true;
  const int64_t blocks = blocks_that_sum(*kernels, T * N, threads.y);
  const at::Tensor parts_BH = sums ? at::empty({blocks, H}, dweight_H.options()) : at::Tensor();
  const bool shares = sums && threads.y > 1;  // the block sums over several heads
  kernels->launch(
      fmt::format("norm_rotate_backward_{}{}_v{}", sums ? "sums_" : "", letter(x_TNH), vector),
      Launch{.blocks_x = static_cast<unsigned>(blocks),
             .threads_x = threads.x,
             .threads_y = threads.y,
             .shared_bytes = shares ? static_cast<unsigned>(threads.y * H * sizeof(float)) : 0},
      cuda::NormRotateBackward{.dy = dy_TNH.const_data_ptr(),
                               .x = x_TNH.const_data_ptr(),
                               .weight = weight_H.const_data_ptr(),
                               .cos = table.cos_TF.const_data_ptr<float>(),
                               .sin = table.sin_TF.const_data_ptr<float>(),
                               .rstd = static_cast<const float*>(data_of(rstd_R)),
                               .dx = dx_TNH.mutable_data_ptr(),
                               .dweight = sums ? parts_BH.mutable_data_ptr<float>() : nullptr,
                               .at_dy = places_of(dy_TNH),
                               .at_x = places_of(x_TNH),
                               .num_all = static_cast<int>(T * N),
                               .num_heads = static_cast<int>(N),
                               .head_dim = static_cast<int>(H),
                               .num_pairs = static_cast<int>(F),
                               .weight_is_bf16 = is_bf16(weight_H),
                               .eps = static_cast<float>(eps)});
  if (sums) add_weight_gradients(dweight_H, parts_BH);
  return true;
}

}  // namespace longspan::cuda_rows
