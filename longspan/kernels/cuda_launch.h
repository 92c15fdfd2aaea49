// What the functions of cuda_rows.h ask of tensors before they start a kernel, and how they share
// out its work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>

#include "longspan/cuda/kernels.h"

namespace longspan::cuda_rows {

using cuda::Kernels;
using cuda::Launch;
using cuda::Part;

inline bool is_fp32(const at::Tensor& x) { return x.scalar_type() == at::kFloat; }
inline bool is_bf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

/// 'f' or 'b' of a tensor, as kernels are named.
inline char letter(const at::Tensor& x) { return is_bf16(x) ? 'b' : 'f'; }

/// Whether all of these (undefined ones aside) are fp32 or bf16, contiguous, and on one device.
bool fit(std::initializer_list<const at::Tensor*> tensors);

/// Whether vectors of so many numbers can be read at the beginning of all of these, by accesses of
/// at most 16 bytes.
bool aligned(std::initializer_list<const at::Tensor*> tensors, int64_t vector);

/// Numbers of an access where the widest of these types decides.
int64_t widest_vector(std::initializer_list<const at::Tensor*> tensors);

bool fits_int(int64_t n);

/// Null where there are none for this tensor.
Kernels* kernels_of(const at::Tensor& x, Part part);

/// Null of an undefined tensor.
const void* data_of(const at::Tensor& x);

unsigned blocks_of(int64_t items, int64_t block);

/// Threads of a row that shares out `needed` items, one each: a power of two up to a warp, or whole
/// warps, as row_sum wants.
unsigned threads_of_row(int64_t needed);

/// Blocks that go on from row to row, as many as run at once: sums of weight gradients are theirs.
/// A block takes `of_block` rows at a time.
int64_t blocks_that_sum(const Kernels& kernels, int64_t num_rows, int64_t of_block);

/// dweight_D += the sum of parts_BD.
void add_weight_gradients(const at::Tensor& dweight_D, const at::Tensor& parts_BD);

}  // namespace longspan::cuda_rows
