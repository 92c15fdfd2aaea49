// XXH64, a fast checksum of files (Yann Collet's xxHash, 64 bits, seed 0). No torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace longspan {

/// An incremental hash.
class Xxh64 {
 public:
  void add(const void* data, size_t num_bytes);
  uint64_t value() const;

 private:
  std::array<uint64_t, 4> lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  std::array<unsigned char, 32> buffer_{};  // of an incomplete stripe
  uint64_t num_bytes_ = 0;

  static constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull, kPrime2 = 0xC2B2AE3D27D4EB4Full,
                            kPrime3 = 0x165667B19E3779F9ull, kPrime4 = 0x85EBCA77C2B2AE63ull,
                            kPrime5 = 0x27D4EB2F165667C5ull;
  static uint64_t round(uint64_t lane, uint64_t word);
  void add_stripe(const unsigned char* stripe);
};

struct FileChecksum {
  int64_t size = 0;
  uint64_t xxh64 = 0;
  bool operator==(const FileChecksum&) const = default;
};

/// kDisk bypasses the page cache, which may hold data that the disk has lost.
enum class ReadFrom { kAnywhere, kDisk };

/// Reads the file and returns its checksum. kDisk: first drops the file from the page cache, where
/// the system can (Linux, for synced files on a disk). Throws UserError where it cannot be read.
FileChecksum checksum_of_file(const std::string& path, ReadFrom from = ReadFrom::kAnywhere);

}  // namespace longspan
