#include "longspan/saving/output_folders.h"

#include <fmt/format.h>

#include <filesystem>

#include "longspan/files/checksum.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

fs::path canonical(const std::string& folder) {
  std::error_code error;
  // weakly_canonical would leave a relative path relative if none of it exists.
  fs::path path = fs::weakly_canonical(fs::absolute(folder, error), error);
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

std::string hash_of_path(const std::string& folder) {
  const std::string path = canonical(folder).string();
  Xxh64 hash;
  hash.add(path.data(), path.size());
  return fmt::format("{:08x}", hash.value() >> 32);
}

std::string fallback_folder(const OutputSettings& config) {
  if (config.fallback_output_dir.empty()) return "";
  return fmt::format("{}/{}-{}", config.fallback_output_dir,
                     canonical(config.output_dir).filename().string(),
                     hash_of_path(config.output_dir));
}

std::vector<std::string> output_folders(const OutputSettings& config) {
  std::vector<std::string> folders{config.output_dir};
  if (!config.fallback_output_dir.empty()) folders.push_back(fallback_folder(config));
  return folders;
}

}  // namespace longspan
