// cuBLASLt: one algorithm that accepts everything.
#include <cublasLt.h>

#include <cstring>

#include "core.h"
#include "gemm.h"

using namespace null_cuda;

namespace {

/// The words of a layout.
enum Word { kType, kRows, kColumns, kStep, kNumber, kBatchStep };

Matrix matrix_of(const void* address, cublasLtMatrixLayout_t layout) {
  const auto* const words = layout->data;
  const auto at = [&](Word word) { return static_cast<int64_t>(words[word]); };
  return {address,        static_cast<cudaDataType>(at(kType)),
          at(kStep),      at(kNumber),
          at(kBatchStep), at(kRows),
          at(kColumns)};
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t) {
  *made = new cublasLtMatmulDescOpaque_t{{static_cast<uint64_t>(compute)}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t made) {
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                              const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = new cublasLtMatmulPreferenceOpaque_t{};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made) {
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t step) {
  *made = new cublasLtMatrixLayoutOpaque_t{
      {static_cast<uint64_t>(type), rows, columns, static_cast<uint64_t>(step), 1, 0}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made) {
  delete made;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t made,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t /*size*/) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    made->data[kNumber] = *static_cast<const int32_t*>(value);
  } else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    made->data[kBatchStep] = *static_cast<const int64_t*>(value);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* number) {
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *number = 1;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t how, const void*,
                              const void* a, cublasLtMatrixLayout_t of_a, const void* b,
                              cublasLtMatrixLayout_t of_b, const void*, const void* c,
                              cublasLtMatrixLayout_t of_c, void* d, cublasLtMatrixLayout_t of_d,
                              const cublasLtMatmulAlgo_t*, void* /*workspace*/, size_t /*size*/,
                              cudaStream_t) {
  const bool rounds = how->data[0] == CUBLAS_COMPUTE_32F_FAST_TF32;
  const Matrix left = matrix_of(a, of_a), right = matrix_of(b, of_b), result = matrix_of(d, of_d);
  // Either of the left matrix's sides may be the depth.
  const int64_t flops = 2 * left.rows * left.columns * result.columns * result.number;
  const bool well = start_gemm(std::string("cublasLtMatmul") + (rounds ? kInTf32 : ""), flops,
                               {left, right, matrix_of(c, of_c), result});
  return well ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // extern "C"
