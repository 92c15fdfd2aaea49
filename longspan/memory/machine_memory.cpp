#include "longspan/memory/machine_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "longspan/memory/control_group.h"
#include "longspan/text/bytes.h"

namespace longspan {
namespace {

/// MemTotal plus SwapTotal (proc(5)) in bytes; 0 if unknown.
int64_t physical_bytes(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  int64_t total = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kilobytes = 0;
    words >> name >> kilobytes;
    if (name == "MemTotal:" || name == "SwapTotal:") total += 1024 * kilobytes;
  }
  return total;
}

std::optional<int64_t> group_limit(const std::string& root) {
  std::optional<int64_t> least;
  for (const GroupFolder& group : group_folders(root, "memory")) {
    const std::vector<double> limit =
        numbers_in(group, group.version_1 ? "memory.limit_in_bytes" : "memory.max");
    // Version 1 has nearly 2^63 for no limit.
    if (limit.empty() || limit[0] <= 0 || limit[0] >= 0x1p62) continue;
    least = std::min(least.value_or(INT64_MAX), static_cast<int64_t>(limit[0]));
  }
  return least;
}

}  // namespace

std::string MachineMemory::text() const {
  return fmt::format("this machine has {} ({})", name_bytes(bytes), limit);
}

MachineMemory machine_memory(const std::string& root) {
  MachineMemory memory;
  const auto bound = [&memory](int64_t bytes, const char* limit) {
    if (bytes < memory.bytes) memory = {bytes, limit};
  };
  if (const int64_t physical = physical_bytes(root); physical > 0) {
    bound(physical, "memory and swap space");
  }
  if (const auto group = group_limit(root)) bound(*group, "the limit of its control group");
  struct rlimit space{};
  if (root.empty() && ::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    bound(static_cast<int64_t>(space.rlim_cur), "the limit of its address space, ulimit -v");
  }
  return memory;
}

}  // namespace longspan
