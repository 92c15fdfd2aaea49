// AVX2 and FMA.
#include "longspan/cpu/vector_kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#define INSTRUCTIONS "avx2"
#include "longspan/cpu/vector_loops.h"

namespace longspan::vector_math {
const Kernels* avx2_kernels() { return &kKernels; }
}  // namespace longspan::vector_math
#else
namespace longspan::vector_math {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace longspan::vector_math
#endif
