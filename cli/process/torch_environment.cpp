#include "cli/process/torch_environment.h"

#include <link.h>
#include <unistd.h>

namespace longspan {

namespace fs = std::filesystem;

std::string torch_directory() {
  std::string library;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        if (fs::path(info->dlpi_name).filename() != "libtorch_cpu.so") return 0;
        *static_cast<std::string*>(found) = info->dlpi_name;
        return 1;
      },
      &library);
  std::error_code error;
  return fs::weakly_canonical(library, error).parent_path().parent_path().string();
}

/// From lib/python3.x/site-packages/torch to bin of the same environment.
fs::path environment_bin() {
  fs::path prefix = torch_directory();
  for (int level = 0; level < 4; ++level) prefix = prefix.parent_path();
  return prefix / "bin";
}

std::string environment_python() {
  const std::string python = environment_bin() / "python3";
  return access(python.c_str(), X_OK) == 0 ? python : "python3";
}

}  // namespace longspan
