#include "longspan/testing/emulated_kernels.h"

#include "longspan/testing/copy_case.h"
#include "longspan/testing/cuda_threads.h"
// The order matters: threads first, then helpers, then kernels.
// clang-format off
#include "longspan/cuda/rows/arguments.h"
#include "longspan/cuda/rows/delta_arguments.h"
#include "longspan/cuda/rows/common.cuh"
#include "longspan/cuda/rows/norm.cu"
#include "longspan/cuda/rows/norm_backward.cu"
#include "longspan/cuda/rows/rotary.cu"
#include "longspan/cuda/rows/norm_rotary.cu"
#include "longspan/cuda/rows/gated.cu"
#include "longspan/cuda/rows/cross_entropy.cu"
#include "longspan/cuda/rows/dropout.cu"
#include "longspan/cuda/rows/packed.cu"
#include "longspan/cuda/rows/adamw_8bit.cu"
#include "longspan/cuda/rows/grouped_tiles.cuh"
#include "longspan/cuda/rows/grouped_gemm.cu"
#include "longspan/cuda/rows/grouped_rows.cu"
#include "longspan/cuda/rows/delta_chunks.cu"
#include "longspan/cuda/rows/delta_chunks_backward.cu"
#include "longspan/cuda/rows/delta_scan.cu"
#include "longspan/cuda/rows/causal_conv.cu"
#include "longspan/testing/copy_kernels.cuh"
// clang-format on

namespace longspan::testing {

void EmulatedKernels::start(const std::string& name, const cuda::Launch& launch,
                            const void* argument) {
  block().copied = copied_;
  block().waits = waits_;
  block().left_out = left_out_;
  run_on_threads(name, {launch.blocks_x, launch.blocks_y}, {launch.threads_x, launch.threads_y},
                 launch.shared_bytes, argument);
}

}  // namespace longspan::testing
