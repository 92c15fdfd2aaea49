#include "longspan/cuda/cubin_cache.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "longspan/files/atomic_file.h"
#include "longspan/input/input_file.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan::cuda {
namespace {

namespace fs = std::filesystem;

TEST_CASE("cubin cache: gives what it was given, and nothing else") {
  const testing::TemporaryFolder folder;
  const CubinCache cache(folder / "not/there");
  const std::string key = "source and options", cubin = std::string("\177ELF\0code\n", 10);
  CHECK(!cache.find(key));
  cache.keep(key, cubin);
  CHECK(cache.find(key) == cubin);
  CHECK(!cache.find("another source"));
  // Another key's file under this name, as after a collision of hashes.
  fs::copy_file(cache.path_of(key), cache.path_of("another source"));
  CHECK(!cache.find("another source"));
  cache.keep(key, "newer");
  CHECK(cache.find(key) == "newer");
}

TEST_CASE("cubin cache: a damaged file is none, at whatever byte") {
  const testing::TemporaryFolder folder;
  const CubinCache cache(folder.path);
  cache.keep("key", "some machine code");
  const std::string path = cache.path_of("key");
  const std::string whole = read_text_file(path, "file");
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    write_file_atomically(path, damaged);
    CHECK(!cache.find("key"));
    write_file_atomically(path, whole.substr(0, i));
    CHECK(!cache.find("key"));
  }
  write_file_atomically(path, whole);
  CHECK(cache.find("key") == "some machine code");
}

TEST_CASE("cubin cache: a folder that cannot be is no error") {
  const testing::TemporaryFolder folder;
  const std::string file = folder.write("file", "");
  for (const std::string& no_folder : {std::string(), file + "/below"}) {
    const CubinCache cache(no_folder);
    cache.keep("key", "code");
    CHECK(!cache.find("key"));
  }
}

}  // namespace
}  // namespace longspan::cuda
