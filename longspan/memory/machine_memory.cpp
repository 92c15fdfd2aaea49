#include "longspan/memory/machine_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include "longspan/text/bytes.h"

namespace longspan {
namespace {

/// Returns the number at the start of a file; nullopt for "max" and for missing files.
std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

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

/// Returns the least limit of `group` and its ancestors up to `top`, read from their files `name`.
std::optional<int64_t> least_limit(const std::string& top, std::string group, const char* name) {
  std::optional<int64_t> least;
  for (;;) {
    const std::optional<int64_t> limit = number_in(fmt::format("{}{}/{}", top, group, name));
    if (limit && *limit > 0 && (!least || *limit < *least)) least = limit;
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return least;
    group.erase(slash);
  }
}

/// "0::/a/b" is version 2, "5:cpu,memory:/a/b" is version 1 (cgroups(7)).
std::optional<int64_t> group_limit(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::optional<int64_t> least;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string group = line.substr(second + 1);
    std::optional<int64_t> limit;
    if (controllers == ",,") {
      limit = least_limit(root + "/sys/fs/cgroup", group, "memory.max");
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit = least_limit(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
    }
    if (limit && (!least || *limit < *least)) least = limit;
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
