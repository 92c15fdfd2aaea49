#include "longspan/files/program_library.h"

#include <filesystem>

namespace longspan {

std::string program_library(const std::string& file_name) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto folder = program.parent_path();
  for (const auto& path : {folder / file_name, folder / "../lib" / file_name}) {
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return "";
}

}  // namespace longspan
