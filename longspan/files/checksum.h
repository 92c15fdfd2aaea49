// XXH64, a fast checksum of files (Yann Collet's xxHash, 64 bits, seed 0). No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct LsrXxh64;

namespace longspan {

/// An incremental hash.
class Xxh64 {
 public:
  Xxh64();
  void add(const void* data, size_t num_bytes);
  uint64_t value() const;

 private:
  struct Free {
    void operator()(LsrXxh64* state) const;
  };
  std::unique_ptr<LsrXxh64, Free> state_;
};

struct FileChecksum {
  int64_t size = 0;
  uint64_t xxh64 = 0;
  bool operator==(const FileChecksum&) const = default;
};

/// kDisk bypasses the page cache, which may hold data that the disk has lost.
enum class ReadFrom { kAnywhere, kDisk };

/// Reads the file and returns its checksum. kDisk: first drops the file from the page cache, where
/// the system can (Linux, for synced files on a disk). Throws UserError where the file cannot be
/// read.
FileChecksum checksum_of_file(const std::string& path, ReadFrom from = ReadFrom::kAnywhere);

}  // namespace longspan
