// Any processor: what the compiler vectorises without being told more (SSE2, NEON).
#include "longspan/cpu/vector_kernels.h"

#define INSTRUCTIONS "portable"
#include "longspan/cpu/vector_loops.h"

namespace longspan::vector_math {
const Kernels* portable_kernels() { return &kKernels; }
}  // namespace longspan::vector_math
