// A disk cache of NVRTC's machine code, for later starts of the program. No torch.
#pragma once

#include <optional>
#include <string>

namespace longspan::cuda {

class CubinCache {
 public:
  /// Caches in this folder, which is created when needed. Caches nothing where `folder` is empty.
  explicit CubinCache(std::string folder);
  /// The cache in $XDG_CACHE_HOME/longspan, or ~/.cache/longspan.
  static CubinCache of_user();

  /// Returns the machine code under this key; nullopt for missing or damaged code. Keys may be
  /// long.
  std::optional<std::string> find(const std::string& key) const;
  /// Caches machine code, atomically. Ignores errors of the disk.
  void keep(const std::string& key, const std::string& cubin) const;
  /// The file of a key; for tests.
  std::string path_of(const std::string& key) const;

 private:
  std::string folder_;
};

}  // namespace longspan::cuda
