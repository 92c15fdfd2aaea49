// The vector instructions that the program's own loops use on this processor.
#pragma once

#include <string>

namespace longspan {

/// Instruction sets for which loops are compiled, each a superset of the set before: any processor;
/// AVX2 and FMA; the AVX-512 of x86-64-v4 (F, BW, DQ, VL).
enum class CpuCapability { kPortable, kAvx2, kAvx512 };

/// Environment variable that asks for a lower capability than the processor's, in tests and
/// comparisons.
inline constexpr const char* kCpuCapabilityVariable = "LONGSPAN_CPU_CAPABILITY";

/// Returns the name that the variable uses: portable, avx2, avx512.
const char* name_of(CpuCapability capability);

/// Returns the widest capability that the processor and the operating system support.
CpuCapability widest_cpu_capability();

/// Returns the capability that a value of the variable asks for; `widest` where `value` is null or
/// empty. Throws UserError for an unknown value, and for a capability wider than `widest`.
CpuCapability chosen_cpu_capability(const char* value, CpuCapability widest);

/// Returns the capability of this process. Reads the variable at the first call. Throws as
/// chosen_cpu_capability().
CpuCapability cpu_capability();

}  // namespace longspan
