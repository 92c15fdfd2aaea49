#include "longspan/files/checksum.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "longspan/input/input_file.h"

namespace longspan {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

uint64_t word_at(const unsigned char* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

}  // namespace

uint64_t Xxh64::round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

void Xxh64::add_stripe(const unsigned char* stripe) {
  for (size_t i = 0; i < 4; ++i) lanes_[i] = round(lanes_[i], word_at(stripe + 8 * i));
}

void Xxh64::add(const void* data, size_t num_bytes) {
  const auto* cursor = static_cast<const unsigned char*>(data);
  size_t buffered = num_bytes_ % 32;
  num_bytes_ += num_bytes;
  if (buffered > 0) {
    const size_t taken = std::min(32 - buffered, num_bytes);
    std::memcpy(buffer_.data() + buffered, cursor, taken);
    cursor += taken;
    num_bytes -= taken;
    buffered += taken;
    if (buffered < 32) return;
    add_stripe(buffer_.data());
  }
  for (; num_bytes >= 32; cursor += 32, num_bytes -= 32) add_stripe(cursor);
  if (num_bytes > 0) std::memcpy(buffer_.data(), cursor, num_bytes);
}

uint64_t Xxh64::value() const {
  uint64_t hash = kPrime5;
  if (num_bytes_ >= 32) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const uint64_t lane : lanes_) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += num_bytes_;
  const unsigned char* cursor = buffer_.data();
  size_t left = num_bytes_ % 32;
  for (; left >= 8; cursor += 8, left -= 8) {
    hash = std::rotl(hash ^ round(0, word_at(cursor)), 27) * kPrime1 + kPrime4;
  }
  if (left >= 4) {
    uint32_t word = 0;
    std::memcpy(&word, cursor, sizeof(word));
    hash = std::rotl(hash ^ word * kPrime1, 23) * kPrime2 + kPrime3;
    cursor += 4;
    left -= 4;
  }
  for (; left > 0; ++cursor, --left) hash = std::rotl(hash ^ *cursor * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

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
