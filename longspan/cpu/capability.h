// Which vector instructions the program's own loops use on this processor.
#pragma once

#include <string>

namespace longspan {

/// What loops are compiled for, each a superset of the one before: any processor; AVX2 and FMA; the
/// AVX-512 of x86-64-v4 (F, BW, DQ, VL).
enum class CpuCapability { kPortable, kAvx2, kAvx512 };

/// Where a lower capability than the processor's is asked for, for tests and for comparisons.
inline constexpr const char* kCpuCapabilityVariable = "LONGSPAN_CPU_CAPABILITY";

/// As the variable spells it: portable, avx2, avx512.
const char* name_of(CpuCapability capability);

/// The widest that the processor and the operating system run.
CpuCapability widest_cpu_capability();

/// What a value of the variable asks for on a processor whose widest is `widest`; null or empty:
/// the widest. Throws UserError for an unknown value and for one that the processor lacks.
CpuCapability chosen_cpu_capability(const char* value, CpuCapability widest);

/// What this process uses: the variable is read at the first call. Throws as
/// chosen_cpu_capability().
CpuCapability cpu_capability();

}  // namespace longspan
