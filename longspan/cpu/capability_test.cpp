// The widest instructions of the processor run, unless fewer are asked for.
#include "longspan/cpu/capability.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "longspan/attention/flash/flash_attention.h"
#include "longspan/base/user_error.h"
#include "longspan/cpu/vector_math.h"

namespace longspan {
namespace {

/// The capability according to the kernel, not to the compiler.
CpuCapability capability_by_linux() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  std::set<std::string> flags;
  while (flags.empty() && std::getline(file, line)) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
  }
  const auto has = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (!flags.contains(name)) return false;
    }
    return true;
  };
  if (has({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"})) {
    return CpuCapability::kAvx512;
  }
  return has({"avx2", "fma"}) ? CpuCapability::kAvx2 : CpuCapability::kPortable;
}

TEST_CASE("capability: the widest that the processor has is what runs") {
  const CpuCapability widest = capability_by_linux();
  CHECK(std::string(name_of(widest_cpu_capability())) == name_of(widest));
  const char* asked = std::getenv(kCpuCapabilityVariable);
  const std::string expected = asked != nullptr && *asked != '\0' ? asked : name_of(widest);
  CHECK(name_of(cpu_capability()) == expected);
  CHECK(vector_math::kernels().instructions == expected);
  CHECK(flash::best_tiles().instructions == expected);
}

TEST_CASE("capability: every set of loops was compiled for what it is called") {
  for (const auto capability :
       {CpuCapability::kPortable, CpuCapability::kAvx2, CpuCapability::kAvx512}) {
    if (capability > widest_cpu_capability()) continue;
    CHECK(vector_math::kernels_of(capability).instructions == std::string(name_of(capability)));
  }
}

TEST_CASE("capability: what the environment may ask for") {
  constexpr CpuCapability kPortable = CpuCapability::kPortable, kAvx2 = CpuCapability::kAvx2,
                          kAvx512 = CpuCapability::kAvx512;
  CHECK((chosen_cpu_capability(nullptr, kAvx2) == kAvx2));
  CHECK((chosen_cpu_capability("", kAvx512) == kAvx512));
  CHECK((chosen_cpu_capability("portable", kAvx512) == kPortable));
  CHECK((chosen_cpu_capability("avx2", kAvx512) == kAvx2));
  CHECK((chosen_cpu_capability("avx512", kAvx512) == kAvx512));
  CHECK_THROWS_WITH_AS(chosen_cpu_capability("avx512", kAvx2),
                       "environment variable LONGSPAN_CPU_CAPABILITY=avx512: this processor runs "
                       "avx2 at most; choose portable or avx2, or unset it",
                       UserError);
  CHECK_THROWS_WITH_AS(chosen_cpu_capability("avx2", kPortable),
                       doctest::Contains("choose portable, or unset it"), UserError);
  for (const char* unknown : {"AVX2", "default", "avx512 ", "1"}) {
    CHECK_THROWS_WITH_AS(chosen_cpu_capability(unknown, kAvx2),
                         doctest::Contains("choose portable, avx2 or avx512, or unset it"),
                         UserError);
  }
}

}  // namespace
}  // namespace longspan
