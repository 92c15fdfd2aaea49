// The bytes that this process has read from files.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace longspan::testing {

/// Returns the count of /proc/self/io. Each call adds its own bytes, fewer than kOwnBytes. Returns
/// nullopt where the system does not count.
inline std::optional<int64_t> bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t number = 0;
  if (!(file >> name >> number) || name != "rchar:") return std::nullopt;
  return number;
}
inline constexpr int64_t kOwnBytes = 1024;

}  // namespace longspan::testing
