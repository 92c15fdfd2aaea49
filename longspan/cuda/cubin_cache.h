// Machine code that NVRTC has made, cached on disk between starts of the program. No torch.
#pragma once

#include <optional>
#include <string>

namespace longspan::cuda {

class CubinCache {
 public:
  /// Files in this folder, which is made when it is wanted; nothing is cached where it is empty.
  explicit CubinCache(std::string folder);
  /// $XDG_CACHE_HOME/longspan, or ~/.cache/longspan.
  static CubinCache of_user();

  /// What is cached under this key, which may be long. nullopt where there is nothing whole.
  std::optional<std::string> find(const std::string& key) const;
  /// Caches it, whole or not at all. A disk that does not take it is no error.
  void keep(const std::string& key, const std::string& cubin) const;
  /// The file of a key; for tests.
  std::string path_of(const std::string& key) const;

 private:
  std::string folder_;
};

}  // namespace longspan::cuda
