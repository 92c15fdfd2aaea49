#include "longspan/files/file_digest.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "longspan/base/user_error.h"
#include "longspan/files/checksum.h"
#include "longspan/input/input_file.h"

namespace longspan {
namespace {

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

[[noreturn]] void fail(const std::string& path, int error) {
  throw UserError(fmt::format("Cannot read {}: {}.", path, std::strerror(error)));
}

}  // namespace

FileStamp stamp_of_file(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) fail(path, errno);
  if (!S_ISREG(status.st_mode)) {
    throw UserError(fmt::format("Cannot read {}: it is no regular file.", path));
  }
  return {.size = status.st_size,
          .mtime_ns = nanoseconds(status.st_mtim),
          .ctime_ns = nanoseconds(status.st_ctim),
          .inode = status.st_ino};
}

int64_t num_digest_blocks(int64_t size) { return (size + kDigestBlock - 1) / kDigestBlock; }

uint64_t digest_of_block(const std::string& path, int64_t block) {
  const InputFile file(path, "file");
  Xxh64 hash;
  std::vector<char> part(size_t{1} << 20);
  for (int64_t place = block * kDigestBlock, end = place + kDigestBlock; place < end;) {
    const size_t wanted = std::min<size_t>(part.size(), static_cast<size_t>(end - place));
    const ssize_t num_read = ::pread(file.descriptor(), part.data(), wanted, place);
    if (num_read == 0) break;
    if (num_read < 0) {
      if (errno == EINTR) continue;
      fail(path, errno);
    }
    hash.add(part.data(), static_cast<size_t>(num_read));
    place += num_read;
  }
  return hash.value();
}

uint64_t digest_from_blocks(const std::vector<uint64_t>& blocks) {
  if (blocks.size() == 1) return blocks[0];
  Xxh64 hash;
  hash.add(blocks.data(), blocks.size() * sizeof(uint64_t));
  return hash.value();
}

}  // namespace longspan
