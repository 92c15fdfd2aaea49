// Lets a test wait for the end of threads and connections, which may take longer on a busy machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <system_error>
#include <thread>

namespace longspan::testing {

/// Returns true if the condition is true now or within a minute.
inline bool comes_true(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

inline int64_t num_entries(const char* folder) {
  // Entries that vanish during the count are no error.
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    ++count;
  }
  return count;
}

/// Counts for this process.
inline int64_t num_threads() { return num_entries("/proc/self/task"); }
inline int64_t num_descriptors() { return num_entries("/proc/self/fd"); }

}  // namespace longspan::testing
