// Kernels that test the emulation of asynchronous copies (emulated_copies_test.cpp). Each thread of
// a warp copies 16 bytes from `from`, and stores the first number of its right neighbour's copy.

namespace longspan::cuda {

using testing::CopyCase;
using testing::CopyFault;

LONGSPAN_KERNEL(copy_vectors, CopyCase, 64) {
  LONGSPAN_SHARED_FLOATS(copies);
  char* const shared = reinterpret_cast<char*>(copies);
  const int thread = static_cast<int>(threadIdx.x);
  const int stride = a.fault == CopyFault::kOneBank ? 128 : 16;
  start_copy(shared + thread * stride, static_cast<const char*>(a.from) + thread * 16,
             thread != a.missing);
  end_copies();
  if (a.fault == CopyFault::kNewestGroup) {
    wait_for_copies<1>();
  } else if (a.fault != CopyFault::kNoWait) {
    wait_for_copies<0>();
  }
  if (a.fault != CopyFault::kNoBarrier) __syncthreads();
  const int next = (thread + 1) % static_cast<int>(blockDim.x);
  a.to[thread] = *reinterpret_cast<const float*>(shared + next * stride);
}

}  // namespace longspan::cuda
