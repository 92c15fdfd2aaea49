#include "longspan/files/file_state.h"

#include <fmt/format.h>

#include <filesystem>

namespace longspan {

std::string file_state(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  const auto time = std::filesystem::last_write_time(path, error).time_since_epoch().count();
  return fmt::format("{}\n{} {}", path, size, time);
}

}  // namespace longspan
