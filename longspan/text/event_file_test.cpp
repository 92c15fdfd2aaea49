#include "longspan/text/event_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace fs = std::filesystem;

namespace longspan {
namespace {

// tests/end_to_end/test_tensorboard.py checks the files with TensorBoard.

std::string complaint(const std::string& folder, int64_t last_step) {
  try {
    const EventFile file(folder, "longspan", last_step);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST_CASE("event file: one that goes on keeps the earlier ones, also those of the same second") {
  const testing::TemporaryFolder folder;
  constexpr int kFiles = 5;
  for (int step = 0; step < kFiles; ++step) {
    EventFile(folder.path, "longspan", step).add({{"train/loss", 1.0}}, step + 1);
    CHECK(folder.num_files() == step + 1);
  }
  EventFile(folder.path, "longspan", -1).add({{"train/loss", 1.0}}, 1);
  CHECK(folder.num_files() == 1);
}

TEST_CASE("event file: an earlier one that is no regular file is named, and nobody waits for it") {
  const testing::TemporaryFolder folder;
  const std::string name = folder / "events.out.tfevents.0000000001.host.1.longspan";
  const auto require_named = [&](const std::string& kind) {
    const std::string said = complaint(folder.path, 3);
    INFO(said);
    CHECK(said.starts_with(name + ": "));
    CHECK(said.find(kind) != std::string::npos);
  };
  REQUIRE(::mkfifo(name.c_str(), 0600) == 0);
  require_named("it is a pipe; wanted is a regular file");
  CHECK(complaint(folder.path, -1).starts_with(name + ": "));
  CHECK(fs::exists(name));
  fs::remove(name);
  fs::create_directory(name);
  require_named("it is a folder; wanted is a file");
  fs::remove(name);
  fs::create_symlink("/dev/zero", name);
  require_named("it is a device; wanted is a regular file");
  fs::remove(name);
  fs::create_symlink(name, name);
  require_named("links lead in a circle");
  // A new run removes the link, not its target.
  fs::remove(name);
  fs::create_symlink(folder.write("kept", "text"), name);
  CHECK(complaint(folder.path, -1) == "(accepted)");
  CHECK(fs::file_size(folder / "kept") == 4);
  CHECK_FALSE(fs::exists(name));
}

}  // namespace
}  // namespace longspan
