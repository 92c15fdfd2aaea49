// The AVX-512 of x86-64-v4.
#include "longspan/cpu/vector_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define INSTRUCTIONS "avx512"
#include "longspan/cpu/vector_loops.h"

namespace longspan::vector_math {
const Kernels* avx512_kernels() { return &kKernels; }
}  // namespace longspan::vector_math
#else
namespace longspan::vector_math {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace longspan::vector_math
#endif
