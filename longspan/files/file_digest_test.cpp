#include "longspan/files/file_digest.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "longspan/base/user_error.h"
#include "longspan/files/checksum.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

void put_byte(const std::string& path, int64_t place, char byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(place);
  file.put(byte);
}

uint64_t digest_of(const std::string& path) {
  std::vector<uint64_t> blocks;
  const int64_t num_blocks = num_digest_blocks(stamp_of_file(path).size);
  for (int64_t i = 0; i < num_blocks; ++i) blocks.push_back(digest_of_block(path, i));
  return digest_from_blocks(blocks);
}

}  // namespace

TEST_CASE("file digest: of a small file it is XXH64, of a large one every byte counts") {
  const testing::TemporaryFolder place;
  const std::string small = place.write("small", "abc");
  CHECK(digest_of(small) == checksum_of_file(small).xxh64);
  CHECK(digest_of(place.write("empty", "")) == Xxh64().value());

  const std::string large = place / "large";
  std::ofstream(large).put('\0');
  std::filesystem::resize_file(large, kDigestBlock + 3);  // with a hole, which takes no space
  CHECK(num_digest_blocks(kDigestBlock + 3) == 2);
  const uint64_t before = digest_of(large);
  for (const int64_t changed : {int64_t{0}, kDigestBlock - 1, kDigestBlock, kDigestBlock + 2}) {
    put_byte(large, changed, 'x');
    CHECK(digest_of(large) != before);
    put_byte(large, changed, '\0');
    CHECK(digest_of(large) == before);
  }
}

TEST_CASE("file digest: the stamp sees a write though size and time are set back") {
  const testing::TemporaryFolder place;
  const std::string path = place.write("file", "abc");
  const FileStamp before = stamp_of_file(path);
  CHECK(stamp_of_file(path) == before);
  // The clock of ctime moves in ticks. Repeats the write until it has moved.
  FileStamp after = before;
  while (after.ctime_ns == before.ctime_ns) {
    put_byte(path, 1, 'x');
    const timespec times[2] = {
        {.tv_sec = before.mtime_ns / 1'000'000'000, .tv_nsec = before.mtime_ns % 1'000'000'000},
        {.tv_sec = before.mtime_ns / 1'000'000'000, .tv_nsec = before.mtime_ns % 1'000'000'000}};
    REQUIRE(utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
    after = stamp_of_file(path);
  }
  CHECK(after.size == before.size);
  CHECK(after.mtime_ns == before.mtime_ns);
  CHECK(after != before);
}

TEST_CASE("file digest: what is no file is refused by name") {
  const testing::TemporaryFolder place;
  CHECK_THROWS_WITH_AS(stamp_of_file(place / "gone"), doctest::Contains("gone"), UserError);
  const std::string pipe = place / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(stamp_of_file(pipe), doctest::Contains("no regular file"), UserError);
}

}  // namespace longspan
