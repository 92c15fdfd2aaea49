#include "longspan/testing/accelerator/recorded_operators.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>

namespace longspan::testing::accelerator {
namespace {

const char* path_of_record() {
  static const char* const path = std::getenv("SIMULATED_OPERATORS");
  return path;
}

/// Written at once, since tests may kill processes.
void append(const std::string& line) {
  const int file = open(path_of_record(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool whole =
      file >= 0 && write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (file >= 0) close(file);
  if (!whole) {
    throw std::runtime_error(std::string("SIMULATED_OPERATORS cannot be written: ") +
                             path_of_record());
  }
}

}  // namespace

bool records_operators() { return path_of_record() != nullptr; }

void record_operator(const std::string& name) {
  static auto* const mutex = new std::mutex;
  static auto* const recorded = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  if (recorded->insert(name).second) append(name + "\n");
}

}  // namespace longspan::testing::accelerator
