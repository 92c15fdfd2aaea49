#include "longspan/files/checksum.h"

#include <doctest/doctest.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "longspan/files/checksum_file.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

uint64_t hash_of(const std::string& text) {
  Xxh64 hash;
  hash.add(text.data(), text.size());
  return hash.value();
}

}  // namespace

TEST_CASE("xxh64: the values of the published test vectors") {
  CHECK(hash_of("") == 0xef46db3751d8e999ull);
  CHECK(hash_of("abc") == 0x44bc2cf5ad770999ull);
  std::string bytes(100, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  CHECK(hash_of(bytes) == 0x6ac1e58032166597ull);  // several stripes and a rest of every kind
}

TEST_CASE("xxh64: pieces of any length make the same hash") {
  std::string bytes(997, 'x');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  for (const size_t step : {1, 3, 31, 32, 33, 64, 500}) {
    Xxh64 hash;
    for (size_t at = 0; at < bytes.size(); at += step) {
      hash.add(bytes.data() + at, std::min(step, bytes.size() - at));
    }
    CHECK(hash.value() == hash_of(bytes));
  }
}

TEST_CASE("checksum file: whole as it was written, every change is seen and named") {
  const testing::TemporaryFolder place;
  place.write("a", "first");
  place.write("below/b", std::string(100000, 'b'));
  place.write("empty", "");
  write_checksum_file(place.path, checksums_of(place.path, {}));
  CHECK(broken_file(place.path) == "");
  for (int part = 0; part < 5; ++part) CHECK(broken_file(place.path, part, 5) == "");

  place.write("below/b", std::string(99999, 'b') + "c");
  CHECK(broken_file(place.path).find("below/b is not what was written") == 0);
  // One of the parts sees it.
  int num_broken = 0;
  for (int part = 0; part < 3; ++part)
    num_broken += broken_file(place.path, part, 3).empty() ? 0 : 1;
  CHECK(num_broken == 1);
  place.write("below/b", "short");
  CHECK(broken_file(place.path) == "below/b has 5 bytes, 100000 were written");
  fs::remove(place / "below/b");
  CHECK(broken_file(place.path).find("below/b cannot be read") == 0);
  place.write("checksums.json", "{\"files\": 3}");
  CHECK(broken_file(place.path).find("checksums.json") == 0);
  fs::remove(place / "checksums.json");
  CHECK(broken_file(place.path).find("checksums.json") == 0);
}

TEST_CASE("checksum file: the table covers itself, and says which files there must be") {
  const testing::TemporaryFolder place;
  place.write("model.safetensors", "first");
  place.write("training_state.json", std::string("{\"") + kCoversItself + "\": true}");
  place.write("training_state/part-00001-of-00001.safetensors", "x");
  const ChecksumTable table = checksums_of(place.path, {});
  write_checksum_file(place.path, table);
  REQUIRE(broken_file(place.path) == "");
  const std::string whole = table_text(table);
  CHECK(table_from(whole) == table);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    place.write("checksums.json", text.replace(at, from.size(), to));
    const std::string problem = broken_file(place.path);
    CHECK_MESSAGE(problem.find("checksums.json") == 0, problem);
    return problem;
  };
  CHECK(changed("\"size\": 5", "\"size\": 6").find("its own checksum differs") !=
        std::string::npos);
  changed("model.safetensors", "madel.safetensors");
  changed("\"format\": 2", "\"format\": 3");
  changed("xxh64_of_this_table", "xxh64_of_that_table");
  // A table as written before tables had their own checksum, in a newer folder.
  for (const char* text : {"{\"files\": {}}",
                           "{\"files\": {\"model.safetensors\": {\"size\": 5, \"xxh64\": "
                           "\"0\"}}}"}) {
    place.write("checksums.json", text);
    CHECK(broken_file(place.path).find("its own checksum is gone") != std::string::npos);
  }
  // A table that lacks an entry, or has one outside the folder, with a new checksum of its own.
  ChecksumTable other = table;
  other.erase("model.safetensors");
  write_checksum_file(place.path, other);
  CHECK(broken_file(place.path).find("model.safetensors is there") == 0);
  other = table;
  other["../thesis"] = {5, 7};
  write_checksum_file(place.path, other);
  CHECK(broken_file(place.path).find("../thesis is no name of a file in it") != std::string::npos);
  write_checksum_file(place.path, table);
  place.write("training_state/part-00002-of-00002.safetensors", "x");
  CHECK(broken_file(place.path).find("part-00002-of-00002.safetensors is there") !=
        std::string::npos);
}

TEST_CASE("checksum file: the table of an older version, without a checksum of its own, is good") {
  const testing::TemporaryFolder place;
  place.write("model.safetensors", "abc");
  place.write("training_state.json", "{}");
  const std::string begin = "{\"files\": {\"model.safetensors\": {\"size\": 3, \"xxh64\": \"";
  place.write("checksums.json", begin + "44bc2cf5ad770999\"}}}");
  CHECK(broken_file(place.path) == "");
  place.write("checksums.json", begin + "44bc2cf5ad770998\"}}}");
  CHECK(broken_file(place.path).find("model.safetensors is not what was written") == 0);
}

TEST_CASE("checksum: read from the disk, memory keeps nothing of the file") {
  // Not in /tmp, which is memory on many machines.
  char name[] = "longspan-checksum-test-XXXXXX";
  const int descriptor = mkstemp(name);
  REQUIRE(descriptor >= 0);
  const std::string path = name, content(size_t{1} << 22, 'x');
  REQUIRE(::write(descriptor, content.data(), content.size()) == std::ssize(content));
  REQUIRE(::fsync(descriptor) == 0);
  const auto bytes_read = [] {  // by this process, from disks
    std::ifstream file("/proc/self/io");
    std::string word;
    int64_t number = -1;
    while (file >> word >> number && word != "read_bytes:") {
    }
    return word == "read_bytes:" ? number : -1;
  };
  const FileChecksum written = checksum_of_file(path);
  const int64_t before = bytes_read();
  CHECK(checksum_of_file(path) == written);
  const int64_t between = bytes_read();
  CHECK(checksum_of_file(path, ReadFrom::kDisk) == written);
  const int64_t after = bytes_read();
  struct statfs system{};
  fstatfs(descriptor, &system);
  ::close(descriptor);
  fs::remove(path);
  // File systems that drop pages and count bytes: ext4, XFS.
  if (before < 0 || (system.f_type != 0xef53 && system.f_type != 0x58465342)) return;
  CHECK(between - before < std::ssize(content));
  CHECK(after - between >= std::ssize(content));
}

}  // namespace longspan
