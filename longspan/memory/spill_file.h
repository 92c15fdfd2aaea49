// A file for tensors that fit neither the device nor the host. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace longspan {

/// An unnamed temporary file. The file disappears with the process, however the process ends. Make
/// one object per process. Thread-safe. All members throw UserError that names the folder and the
/// remedy.
class SpillFile {
 public:
  /// Creates the folder if it is missing.
  explicit SpillFile(std::string folder);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Reserves `num_bytes` and returns their offset in the file. Free the bytes with release().
  int64_t reserve(int64_t num_bytes);
  void release(int64_t place, int64_t num_bytes);

  void write(int64_t place, const void* data, int64_t num_bytes);
  void read(int64_t place, void* data, int64_t num_bytes);

  /// Peak of the reserved bytes.
  int64_t peak_bytes() const;

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string folder_;
  int descriptor_ = -1;
  mutable std::mutex mutex_;
  int64_t end_ = 0, live_ = 0, peak_ = 0;
  std::multimap<int64_t, int64_t> free_;  // size -> offset
};

}  // namespace longspan
