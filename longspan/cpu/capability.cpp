#include "longspan/cpu/capability.h"

#include <fmt/format.h>

#include <cstdlib>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

constexpr CpuCapability kAll[] = {CpuCapability::kPortable, CpuCapability::kAvx2,
                                  CpuCapability::kAvx512};

/// "portable, avx2 or avx512", up to the widest.
std::string choices_up_to(CpuCapability widest) {
  std::string text;
  for (const CpuCapability capability : kAll) {
    if (capability > widest) break;
    if (!text.empty()) text += capability == widest ? " or " : ", ";
    text += name_of(capability);
  }
  return text;
}

}  // namespace

const char* name_of(CpuCapability capability) {
  switch (capability) {
    case CpuCapability::kPortable:
      return "portable";
    case CpuCapability::kAvx2:
      return "avx2";
    case CpuCapability::kAvx512:
      return "avx512";
  }
  __builtin_unreachable();
}

CpuCapability widest_cpu_capability() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The instruction sets for which the loops are compiled (CMakeLists.txt).
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx2 && has_avx512) return CpuCapability::kAvx512;
  if (has_avx2) return CpuCapability::kAvx2;
#endif
  return CpuCapability::kPortable;
}

CpuCapability chosen_cpu_capability(const char* value, CpuCapability widest) {
  if (value == nullptr || *value == '\0') return widest;
  const std::string wanted = value;
  for (const CpuCapability capability : kAll) {
    if (wanted != name_of(capability)) continue;
    if (capability <= widest) return capability;
    throw UserError(
        fmt::format("environment variable {}={}: this processor runs {} at most; choose {}, or "
                    "unset it",
                    kCpuCapabilityVariable, wanted, name_of(widest), choices_up_to(widest)));
  }
  throw UserError(fmt::format(
      "environment variable {}={}: choose {}, or unset it, and the widest of them that "
      "the processor runs is used ({})",
      kCpuCapabilityVariable, wanted, choices_up_to(CpuCapability::kAvx512), name_of(widest)));
}

CpuCapability cpu_capability() {
  static const CpuCapability chosen =
      chosen_cpu_capability(std::getenv(kCpuCapabilityVariable), widest_cpu_capability());
  return chosen;
}

}  // namespace longspan
