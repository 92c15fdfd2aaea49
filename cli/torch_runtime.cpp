#include "cli/torch_runtime.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/input/input_file.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

std::string without_build(const std::string& version) {
  return version.substr(0, version.find('+'));
}

}  // namespace

std::string torch_version() {
  const fs::path path = fs::path(torch_directory()) / "version.py";
  std::optional<InputFile> file = InputFile::open_if_there(path, "version of torch");
  if (!file) return "";
  LineReader lines(std::move(*file));
  // __version__ = '2.15.0+cpu'
  for (std::string line; lines.next(line);) {
    if (!line.starts_with("__version__")) continue;
    const size_t begin = line.find_first_of("'\"");
    if (begin == std::string::npos) continue;
    return line.substr(begin + 1, line.find_first_of("'\"", begin + 1) - begin - 1);
  }
  return "";
}

void require_compiled_torch() {
  const std::string running = torch_version();
  if (running.empty() || without_build(running) == without_build(LONGSPAN_TORCH_VERSION)) return;
  throw UserError(
      fmt::format("longspan was compiled against torch {}, but {} holds torch {}. Install that "
                  "version again, or build longspan anew (`pip install --force-reinstall .`, or "
                  "`make`).",
                  LONGSPAN_TORCH_VERSION, torch_directory(), running));
}

}  // namespace longspan
