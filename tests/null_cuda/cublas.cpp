// cuBLAS: gemms check that their matrices lie in the memory of a GPU, and are counted.
#define CUBLASAPI
#include <cublas_v2.h>

#include <string>

#include "core.h"
#include "gemm.h"

using namespace null_cuda;

namespace {

struct Handle {
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
};

Handle& of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

/// Returns the counter's name for a gemm, with a suffix if its handle and compute type may round
/// fp32 to TF32.
std::string counted_as(const char* name, cublasHandle_t handle, cudaDataType a_type,
                       cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
  const bool rounds = a_type == CUDA_R_32F && (of(handle).math_mode == CUBLAS_TF32_TENSOR_OP_MATH ||
                                               compute == CUBLAS_COMPUTE_32F_FAST_TF32);
  return std::string(name) + (rounds ? kInTf32 : "");
}

cublasStatus_t gemm(const std::string& name, cublasOperation_t a_op, cublasOperation_t b_op,
                    int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, Matrix c) {
  a.rows = a_op == CUBLAS_OP_N ? m : k;
  a.columns = a_op == CUBLAS_OP_N ? k : m;
  b.rows = b_op == CUBLAS_OP_N ? k : n;
  b.columns = b_op == CUBLAS_OP_N ? n : k;
  c.rows = m;
  c.columns = n;
  return start_gemm(name, 2 * m * n * k * c.number, {a, b, c}) ? CUBLAS_STATUS_SUCCESS
                                                               : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = reinterpret_cast<cublasHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete &of(handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void* workspace, size_t size) {
  return size == 0 || is_memory(workspace, size) ? CUBLAS_STATUS_SUCCESS
                                                 : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasSetSmCountTarget(cublasHandle_t, int) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = of(handle).pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  of(handle).pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = of(handle).math_mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  of(handle).math_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op,
                            int m, int n, int k, const void*, const void* a, cudaDataType a_type,
                            int lda, const void* b, cudaDataType b_type, int ldb, const void*,
                            void* c, cudaDataType c_type, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t) {
  return gemm(counted_as("cublasGemmEx", handle, a_type, compute), a_op, b_op, m, n, k,
              {a, a_type, lda}, {b, b_type, ldb}, {c, c_type, ldc});
}
cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op,
                             int m, int n, int k, const float*, const void* a, cudaDataType a_type,
                             int lda, const void* b, cudaDataType b_type, int ldb, const float*,
                             void* c, cudaDataType c_type, int ldc) {
  return gemm(counted_as("cublasSgemmEx", handle, a_type), a_op, b_op, m, n, k, {a, a_type, lda},
              {b, b_type, ldb}, {c, c_type, ldc});
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op,
                              int m, int n, int k, const float*, const float* a, int lda,
                              const float* b, int ldb, const float*, float* c, int ldc) {
  return gemm(counted_as("cublasSgemm", handle, CUDA_R_32F), a_op, b_op, m, n, k,
              {a, CUDA_R_32F, lda}, {b, CUDA_R_32F, ldb}, {c, CUDA_R_32F, ldc});
}
cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k,
    const void*, const void* a, cudaDataType a_type, int lda, long long a_step, const void* b,
    cudaDataType b_type, int ldb, long long b_step, const void*, void* c, cudaDataType c_type,
    int ldc, long long c_step, int number, cublasComputeType_t compute, cublasGemmAlgo_t) {
  return gemm(counted_as("cublasGemmStridedBatchedEx", handle, a_type, compute), a_op, b_op, m, n,
              k, {a, a_type, lda, number, a_step}, {b, b_type, ldb, number, b_step},
              {c, c_type, ldc, number, c_step});
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t a_op,
                                         cublasOperation_t b_op, int m, int n, int k, const float*,
                                         const float* a, int lda, long long a_step, const float* b,
                                         int ldb, long long b_step, const float*, float* c, int ldc,
                                         long long c_step, int number) {
  return gemm(counted_as("cublasSgemmStridedBatched", handle, CUDA_R_32F), a_op, b_op, m, n, k,
              {a, CUDA_R_32F, lda, number, a_step}, {b, CUDA_R_32F, ldb, number, b_step},
              {c, CUDA_R_32F, ldc, number, c_step});
}
cublasStatus_t cublasDgemm_v2(cublasHandle_t, cublasOperation_t a_op, cublasOperation_t b_op, int m,
                              int n, int k, const double*, const double* a, int lda,
                              const double* b, int ldb, const double*, double* c, int ldc) {
  return gemm("cublasDgemm", a_op, b_op, m, n, k, {a, CUDA_R_64F, lda}, {b, CUDA_R_64F, ldb},
              {c, CUDA_R_64F, ldc});
}
cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t, cublasOperation_t a_op,
                                         cublasOperation_t b_op, int m, int n, int k, const double*,
                                         const double* a, int lda, long long a_step,
                                         const double* b, int ldb, long long b_step, const double*,
                                         double* c, int ldc, long long c_step, int number) {
  return gemm("cublasDgemmStridedBatched", a_op, b_op, m, n, k,
              {a, CUDA_R_64F, lda, number, a_step}, {b, CUDA_R_64F, ldb, number, b_step},
              {c, CUDA_R_64F, ldc, number, c_step});
}
cublasStatus_t cublasStrsm_v2(cublasHandle_t, cublasSideMode_t, cublasFillMode_t, cublasOperation_t,
                              cublasDiagType_t, int, int, const float*, const float*, int, float*,
                              int) {
  count(Counted::kLaunches, "cublasStrsm");
  return CUBLAS_STATUS_SUCCESS;
}
// Only the GPU knows the addresses of the matrices.
cublasStatus_t cublasStrsmBatched(cublasHandle_t, cublasSideMode_t, cublasFillMode_t,
                                  cublasOperation_t, cublasDiagType_t, int, int, const float*,
                                  const float* const[], int, float* const[], int, int) {
  count(Counted::kLaunches, "cublasStrsmBatched");
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
