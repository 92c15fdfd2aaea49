// Checks of tensors before a kernel of cuda_rows.h starts, and sizes of its launch.
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

/// Returns 'f' or 'b', as in names of kernels.
inline char letter(const at::Tensor& x) { return is_bf16(x) ? 'b' : 'f'; }

/// Whether all defined tensors are fp32 or bf16, contiguous, and on one device.
bool fit(std::initializer_list<const at::Tensor*> tensors);

/// Whether vectors of `vector` numbers can be read at the beginning of all tensors, by accesses of
/// at most 16 bytes.
bool aligned(std::initializer_list<const at::Tensor*> tensors, int64_t vector);

/// Elements of one memory access, for the widest of these dtypes.
int64_t widest_vector(std::initializer_list<const at::Tensor*> tensors);

bool fits_int(int64_t n);

/// Returns the part's kernels; null where there are no kernels for this tensor.
Kernels* kernels_of(const at::Tensor& x, Part part);

/// Returns the data; null for an undefined tensor.
const void* data_of(const at::Tensor& x);

unsigned blocks_of(int64_t items, int64_t block);

/// Number of threads for a row with `needed` items, one item per thread. Rounded up to a power of
/// two within a warp, or to whole warps, as row_sum() needs.
unsigned threads_of_row(int64_t needed);

/// Blocks that loop over rows and sum weight gradients: as many as the GPU runs at once. A block
/// takes `of_block` rows at a time.
int64_t blocks_that_sum(const Kernels& kernels, int64_t num_rows, int64_t of_block);

/// Adds the sum of parts_BD to dweight_D.
void add_weight_gradients(const at::Tensor& dweight_D, const at::Tensor& parts_BD);

}  // namespace longspan::cuda_rows
