#include "longspan/saving/output_room.h"

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "longspan/base/user_error.h"
#include "longspan/config/config.h"
#include "longspan/saving/output_folders.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

TEST_CASE("output folders: each output_dir has its own in fallback_output_dir") {
  const testing::TemporaryFolder place;
  const auto folder_of = [&](const std::string& output_dir) {
    Config config;
    config.output.output_dir = output_dir;
    config.output.fallback_output_dir = "other";
    CHECK(output_folders(config.output) ==
          std::vector<std::string>{output_dir, fallback_folder(config.output)});
    return fallback_folder(config.output);
  };
  const std::string one = folder_of(place / "a/run");
  CHECK(one.starts_with("other/run-"));
  CHECK(one.size() == std::string("other/run-").size() + 8);
  CHECK(one != folder_of(place / "b/run"));
  // The same folder by other names, before and after it exists.
  CHECK(one == folder_of(place / "a/../a/run/"));
  std::filesystem::create_directories(place / "a/run");
  std::filesystem::create_directory_symlink(place / "a", place / "link");
  CHECK(one == folder_of(place / "a/run"));
  CHECK(one == folder_of(place / "link/run"));
  CHECK(folder_of("nowhere/yet") ==
        folder_of((std::filesystem::current_path() / "nowhere/yet").string()));
  Config config;
  config.output.output_dir = "run";
  CHECK(fallback_folder(config.output).empty());
  CHECK(output_folders(config.output) == std::vector<std::string>{"run"});
}

TEST_CASE("output room: several try the same folder at once") {
  const testing::TemporaryFolder place;
  std::atomic<int> num_failed = 0;
  {
    std::vector<std::jthread> machines;
    for (int i = 0; i < 4; ++i) {
      machines.emplace_back([&] {
        for (int j = 0; j < 50; ++j) {
          try {
            try_folder("output_dir", place / "not/there");
          } catch (const UserError&) {
            ++num_failed;
          }
        }
      });
    }
  }
  CHECK(num_failed == 0);
}

}  // namespace
}  // namespace longspan
