#include "longspan/report/memory_report.h"

#include <doctest/doctest.h>

namespace longspan {
namespace {

TEST_CASE("memory report: a warning where the ranks of a machine need more than it has") {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const MachineMemory machine{8 * kGiB, "memory and swap space"};
  CHECK(warning_of_memory(4 * kGiB, 2, machine).empty());
  const std::string warning = warning_of_memory(4 * kGiB, 3, machine);
  CHECK_MESSAGE(warning.find("3 ranks of this run need some 12.0 GiB, and this machine has 8.0 GiB "
                             "(memory and swap space)") != std::string::npos,
                warning);
  CHECK_FALSE(warning_of_memory(INT64_MAX, 2, machine).empty());
}

}  // namespace
}  // namespace longspan
