#include "longspan/cuda/shared_library.h"

#include <link.h>

#include <filesystem>
#include <system_error>

namespace longspan::cuda {

std::string folder_of_torch() {
  std::string library;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        if (std::filesystem::path(info->dlpi_name).filename() != "libtorch_cpu.so") return 0;
        *static_cast<std::string*>(found) = info->dlpi_name;
        return 1;
      },
      &library);
  if (library.empty()) return "";
  std::error_code error;
  return std::filesystem::weakly_canonical(library, error).parent_path().string();
}

}  // namespace longspan::cuda
