// fp32 gemm on a CPU by Longspan's own tiles, for AMD's processors without AVX-512, on which no
// library of torch reaches the processor's rate.
#pragma once

#include <ATen/core/Tensor.h>

#include "longspan/cpu/gemm_tiles.h"

namespace longspan {

/// True if these are fp32 CPU matrices that are large enough for the tiles. With few rows or
/// columns, packing would cost more than it saves, and a library computes the gemm.
bool tiled_gemm_takes(const at::Tensor& a, const at::Tensor& b);

/// c[m, n] = or (add) += scale a[m, k] b[k, n]; a and b have any strides, c has contiguous rows or
/// columns. The order of each element's sum depends on k alone, for any number of threads. Works in
/// 2 MiB of the calling thread and 192 KiB of each other thread (GotoBLAS: Goto and van de Geijn,
/// "Anatomy of High-Performance Matrix Multiplication", 2008).
void tiled_gemm_out(at::Tensor c, const at::Tensor& a, const at::Tensor& b, double scale, bool add,
                    const GemmTiles& tiles);

}  // namespace longspan
