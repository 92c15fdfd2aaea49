// A folder for one test.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace longspan::testing {

/// Empty at first; removed with the object.
struct TemporaryFolder {
  std::string path;

  TemporaryFolder() {
    path = (std::filesystem::temp_directory_path() / "longspan-test-XXXXXX").string();
    REQUIRE(::mkdtemp(path.data()) != nullptr);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path + "/" + name; }
  /// Writes a file and creates missing folders; returns the file's path.
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(*this / name).parent_path());
    std::ofstream(*this / name, std::ios::binary) << text;
    return *this / name;
  }
  int64_t num_files() const {
    return std::distance(std::filesystem::directory_iterator(path),
                         std::filesystem::directory_iterator());
  }
};

}  // namespace longspan::testing
