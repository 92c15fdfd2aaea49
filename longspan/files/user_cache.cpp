#include "longspan/files/user_cache.h"

#include <cstdlib>
#include <filesystem>

namespace longspan {

std::string user_cache_folder() {
  namespace fs = std::filesystem;
  const char* const caches = std::getenv("XDG_CACHE_HOME");
  // The standard requires an absolute path, and says to ignore a relative one.
  if (caches != nullptr && caches[0] == '/') return (fs::path(caches) / "longspan").string();
  const char* const home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') return "";
  return (fs::path(home) / ".cache" / "longspan").string();
}

}  // namespace longspan
