#include "longspan/cuda/cubin_cache.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/user_cache.h"
#include "longspan/input/input_file.h"

namespace longspan::cuda {
namespace {

namespace fs = std::filesystem;

/// Far larger than any part's machine code.
constexpr int64_t kMostBytes = int64_t{64} << 20;

/// Returns the first line of a file: a second hash of the key (the first is in the file's name) and
/// a hash of the code. So files of other keys and damaged files are no hits.
std::string head_of(const std::string& key, std::string_view cubin) {
  return fmt::format("longspan cubin {:016x} {:016x}\n", fnv1a("again " + key), fnv1a(cubin));
}

}  // namespace

CubinCache::CubinCache(std::string folder) : folder_(std::move(folder)) {}

CubinCache CubinCache::of_user() { return CubinCache(user_cache_folder()); }

std::string CubinCache::path_of(const std::string& key) const {
  return (fs::path(folder_) / fmt::format("{:016x}.cubin", fnv1a(key))).string();
}

std::optional<std::string> CubinCache::find(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  try {
    std::optional<InputFile> file = InputFile::open_if_there(path_of(key), "compiled CUDA kernels");
    if (!file) return std::nullopt;
    const std::string bytes = file->read_all(kMostBytes);
    const size_t size = head_of(key, "").size();
    if (bytes.size() <= size) return std::nullopt;
    std::string cubin = bytes.substr(size);
    if (bytes.compare(0, size, head_of(key, cubin)) != 0) return std::nullopt;
    return cubin;
  } catch (const UserError&) {
    return std::nullopt;
  }
}

void CubinCache::keep(const std::string& key, const std::string& cubin) const {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) return;
  try {
    write_file_atomically(path_of(key), head_of(key, cubin) + cubin);
  } catch (const UserError&) {
    // Without a cache, the next start compiles again.
  }
}

}  // namespace longspan::cuda
