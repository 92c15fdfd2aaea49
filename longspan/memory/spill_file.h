// A file for tensors that neither device nor host have room for. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace longspan {

/// The file has no name from its first moment on: it disappears with the process, however that
/// ends. Make one object for each process. Several threads may read and write. All members throw
/// UserError that names the folder and the remedy.
class SpillFile {
 public:
  /// Makes the folder where it is missing.
  explicit SpillFile(std::string folder);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Reserves so many bytes and returns their place; give it back by release().
  int64_t reserve(int64_t num_bytes);
  void release(int64_t place, int64_t num_bytes);

  void write(int64_t place, const void* data, int64_t num_bytes);
  void read(int64_t place, void* data, int64_t num_bytes);

  /// The most that was reserved at once.
  int64_t peak_bytes() const;

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string folder_;
  int descriptor_ = -1;
  mutable std::mutex mutex_;
  int64_t end_ = 0, live_ = 0, peak_ = 0;
  std::multimap<int64_t, int64_t> free_;  // size -> place
};

}  // namespace longspan
