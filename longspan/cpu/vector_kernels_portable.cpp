// Any processor: instructions that the compiler uses by default (SSE2, NEON).
#include "longspan/cpu/vector_kernels.h"

#define INSTRUCTIONS "portable"
#include "longspan/cpu/vector_loops.h"

namespace longspan::vector_math {
const Kernels* portable_kernels() { return &kKernels; }
}  // namespace longspan::vector_math
