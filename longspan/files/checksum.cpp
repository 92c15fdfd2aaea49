#include "longspan/files/checksum.h"

#include <fcntl.h>

#include <vector>

#include "longspan/input/input_file.h"
#include "longspan_rs.h"

namespace longspan {

void Xxh64::Free::operator()(LsrXxh64* state) const { lsr_xxh64_free(state); }

Xxh64::Xxh64() : state_(lsr_xxh64_new()) {}

void Xxh64::add(const void* data, size_t num_bytes) {
  lsr_xxh64_add(state_.get(), {static_cast<const char*>(data), num_bytes});
}

uint64_t Xxh64::value() const { return lsr_xxh64_value(state_.get()); }

FileChecksum checksum_of_file(const std::string& path, ReadFrom from) {
  InputFile file(path, "file");
  // The result is ignored: the file is read either way.
  if (from == ReadFrom::kDisk) {
    static_cast<void>(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED));
  }
  FileChecksum checksum;
  Xxh64 hash;
  std::vector<char> part(size_t{1} << 20);
  while (const size_t num_read = file.read(part.data(), part.size())) {
    hash.add(part.data(), num_read);
    checksum.size += static_cast<int64_t>(num_read);
  }
  checksum.xxh64 = hash.value();
  return checksum;
}

}  // namespace longspan
