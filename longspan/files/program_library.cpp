#include "longspan/files/program_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

namespace longspan {

namespace fs = std::filesystem;

std::string program_file() {
  std::error_code error;
  // The code of this function is in the program, or in the shared object of the Python package.
  Dl_info here;
  const bool is_known = dladdr(reinterpret_cast<const void*>(&program_file), &here) != 0;
  const fs::path file = is_known ? fs::path(here.dli_fname) : fs::path();
  return (file.extension() == ".so" ? fs::canonical(file, error)
                                    : fs::read_symlink("/proc/self/exe", error))
      .string();
}

std::string program_library(const std::string& file_name) {
  std::error_code error;
  const fs::path file = program_file(), folder = file.parent_path();
  const bool is_shared = file.extension() == ".so";
  const std::vector<const char*> places =
      is_shared ? std::vector{".", "lib", "../.."} : std::vector{".", "../lib"};
  for (const char* place : places) {
    const fs::path path = (folder / place / file_name).lexically_normal();
    if (fs::exists(path, error)) return path.string();
  }
  return "";
}

}  // namespace longspan
