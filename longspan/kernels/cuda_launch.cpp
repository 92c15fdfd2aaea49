#include "longspan/kernels/cuda_launch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "longspan/cuda/rows/arguments.h"

namespace longspan::cuda_rows {

bool fit(std::initializer_list<const at::Tensor*> tensors) {
  const at::Tensor& first = **tensors.begin();
  return std::ranges::all_of(tensors, [&](const at::Tensor* x) {
    return !x->defined() ||
           (x->device() == first.device() && x->is_contiguous() && (is_fp32(*x) || is_bf16(*x)));
  });
}

bool aligned(std::initializer_list<const at::Tensor*> tensors, int64_t vector) {
  constexpr int64_t kMostBytes = 16;
  return std::ranges::all_of(tensors, [&](const at::Tensor* x) {
    if (!x->defined()) return true;
    const int64_t bytes = std::min(kMostBytes, vector * static_cast<int64_t>(x->element_size()));
    return reinterpret_cast<uintptr_t>(x->const_data_ptr()) % static_cast<uintptr_t>(bytes) == 0;
  });
}

int64_t widest_vector(std::initializer_list<const at::Tensor*> tensors) {
  const bool all_bf16 = std::ranges::all_of(
      tensors, [](const at::Tensor* x) { return !x->defined() || is_bf16(*x); });
  return all_bf16 ? cuda::kBf16Vector : cuda::kFp32Vector;
}

bool fits_int(int64_t n) { return n <= std::numeric_limits<int>::max() / 2; }

Kernels* kernels_of(const at::Tensor& x, Part part) {
  return cuda::kernels_of(x.device().index(), part);
}

const void* data_of(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }

unsigned blocks_of(int64_t items, int64_t block) {
  return static_cast<unsigned>((items + block - 1) / block);
}

unsigned threads_of_row(int64_t needed) {
  return static_cast<unsigned>(needed <= 32 ? std::bit_ceil(static_cast<uint64_t>(needed))
                                            : (needed + 31) / 32 * 32);
}

int64_t blocks_that_sum(const Kernels& kernels, int64_t num_rows, int64_t of_block) {
  constexpr int64_t kBlocksOfMultiprocessor = 2;
  return std::min<int64_t>(kBlocksOfMultiprocessor * kernels.num_multiprocessors(),
                           blocks_of(num_rows, of_block));
}

void add_weight_gradients(const at::Tensor& dweight_D, const at::Tensor& parts_BD) {
  const int64_t D = dweight_D.size(0);
  kernels_of(dweight_D, Part::kNormBackward)
      ->launch("sum_weight_gradients",
               Launch{.blocks_x = blocks_of(D, cuda::kSumColumns),
                      .threads_x = cuda::kSumColumns,
                      .threads_y = cuda::kSumParts},
               cuda::WeightSum{.parts = parts_BD.const_data_ptr<float>(),
                               .dweight = dweight_D.mutable_data_ptr<float>(),
                               .num_parts = static_cast<int>(parts_BD.size(0)),
                               .size = static_cast<int>(D)});
}

}  // namespace longspan::cuda_rows
