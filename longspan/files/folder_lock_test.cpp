#include "longspan/files/folder_lock.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <system_error>
#include <thread>

#include "longspan/files/file_claim.h"
#include "longspan/files/lock_owner.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// A sign of life ends the watch at once. kShortWatch is for tests without one.
const LockTimes kTimes{.beat = milliseconds(20),
                       .watch = seconds(60),
                       .silence = seconds(60),
                       .patience = milliseconds(200)};
const LockTimes kShortWatch{.beat = milliseconds(20),
                            .watch = milliseconds(50),
                            .silence = seconds(60),
                            .patience = milliseconds(200)};

/// A process that runs `what`, reports it, and then waits to be killed.
class Child {
 public:
  explicit Child(const std::function<void()>& what) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    process = ::fork();
    REQUIRE(process >= 0);
    if (process == 0) {
      try {
        what();
        static_cast<void>(!::write(ends[1], "y", 1));
        for (;;) ::pause();
      } catch (...) {
      }
      ::_exit(1);
    }
    ::close(ends[1]);
    char word = 0;
    CHECK(::read(ends[0], &word, 1) == 1);
    ::close(ends[0]);
  }
  ~Child() {
    if (process > 0) kill();
  }
  void kill() {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
    process = -1;
  }
  pid_t process = -1;
};

std::string refusal(const std::string& folder, bool knows_locks = true,
                    const LockTimes& times = kTimes) {
  try {
    const FolderLock lock("output_dir", folder, times, knows_locks);
    return "";
  } catch (const FolderBusyError& error) {
    return error.what();
  }
}

/// Writes a lock file as another machine would leave it.
void write_foreign_record(const std::string& folder, std::chrono::seconds age) {
  LockOwner owner = new_lock_owner();
  owner.process.host = "node7";
  owner.process.machine = "another boot";
  owner.process.process = 4711;
  std::ofstream(folder + "/" + kLockFile) << text_of(owner);
  fs::last_write_time(folder + "/" + kLockFile, fs::file_time_type::clock::now() - age);
}

}  // namespace

TEST_CASE("folder lock: another process is refused, by name, until the owner is killed") {
  for (const bool knows_locks : {true, false}) {
    CAPTURE(knows_locks);
    const testing::TemporaryFolder place;
    Child owner([&] {
      static const FolderLock& lock =
          *new FolderLock("output_dir", place.path, kTimes, knows_locks);
      static_cast<void>(lock);
    });
    const std::string told = refusal(place.path, knows_locks);
    CHECK(told.find(place.path) != std::string::npos);
    CHECK(told.find(fmt::format("process {}, since 20", owner.process)) != std::string::npos);
    CHECK(told.find("host " + own_process().host) != std::string::npos);
    if (knows_locks) {
      CHECK_THROWS_AS(require_not_locked("output_dir", place.path, kTimes), FolderBusyError);
    }
    owner.kill();
    CHECK(fs::exists(place / kLockFile));
    CHECK_NOTHROW(require_not_locked("output_dir", place.path, kTimes));
    {
      const FolderLock lock("output_dir", place.path, kTimes, knows_locks);
      // Another thread of this process is excluded too.
      CHECK(refusal(place.path, knows_locks) != "");
    }
    CHECK(place.num_files() == 0);
    CHECK(refusal(place.path, knows_locks) == "");
  }
}

TEST_CASE("folder lock: it is not handed on to programs that this one starts") {
  const testing::TemporaryFolder place;
  FolderLock lock("output_dir", place.path, kTimes);
  int num_held = 0, num_handed_on = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (fs::read_symlink(entry.path(), error) != place / kLockFile) continue;
    ++num_held;
    const int descriptor = std::stoi(entry.path().filename().string());
    if ((::fcntl(descriptor, F_GETFD) & FD_CLOEXEC) == 0) ++num_handed_on;
  }
  CHECK(num_held > 0);
  CHECK(num_handed_on == 0);
  lock.release();
  CHECK(place.num_files() == 0);
  // An open file would remain on a network disk.
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string held = fs::read_symlink(entry.path(), error);
    CHECK_MESSAGE(!held.starts_with(place / kLockFile), held);
  }
  CHECK(refusal(place.path) == "");
}

TEST_CASE("folder lock: where no thread can be started, nothing is left behind") {
  const testing::TemporaryFolder place;
  pthread_attr_t usual, huge;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_getattr_default_np(&huge) == 0);
  // No machine has memory for such a stack.
  REQUIRE(::pthread_attr_setstacksize(&huge, size_t{1} << 60) == 0);
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  bool thrown = false;
  try {
    const FolderLock lock("output_dir", place / "a/b", kTimes);
  } catch (const std::system_error&) {
    thrown = true;
  }
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  ::pthread_attr_destroy(&huge);
  ::pthread_attr_destroy(&usual);
  CHECK(thrown);
  CHECK(fs::is_empty(place.path));
  CHECK(refusal(place / "a/b") == "");
}

TEST_CASE("folder lock: folders that are made for it go with it, unless something is in them") {
  const testing::TemporaryFolder place;
  {
    const FolderLock lock("output_dir", place / "a/b/", kTimes);
  }
  CHECK(place.num_files() == 0);
  {
    const FolderLock lock("output_dir", place / "a/b", kTimes);
    place.write("a/notes", "x");
  }
  CHECK(fs::exists(place / "a/notes"));
  CHECK_FALSE(fs::exists(place / "a/b"));
}

TEST_CASE(
    "folder lock: where the file's name is somebody else's, nothing is locked or waited for") {
  const testing::TemporaryFolder place;
  place.write("thesis", "years");
  fs::create_symlink(place / "thesis", place / kLockFile);
  CHECK_THROWS_AS(FolderLock("output_dir", place.path, kTimes), UserError);
  fs::remove(place / kLockFile);
  fs::create_directory(place / kLockFile);
  CHECK_THROWS_AS(FolderLock("output_dir", place.path, kTimes), UserError);
  fs::remove(place / kLockFile);
  REQUIRE(::mkfifo((place / kLockFile).c_str(), 0600) == 0);
  CHECK_THROWS_AS(FolderLock("output_dir", place.path, kTimes), UserError);
  CHECK_NOTHROW(require_not_locked("output_dir", place.path, kTimes));
  CHECK_THROWS_AS(FolderLock("output_dir", place / "thesis", kTimes), UserError);
  std::ifstream thesis(place / "thesis");
  std::string text;
  thesis >> text;
  CHECK(text == "years");
}

TEST_CASE(
    "folder lock: the owner on another machine is believed as long as it gives signs of life") {
  const testing::TemporaryFolder place;
  // The disk has locks, so the file is watched for a moment.
  write_foreign_record(place.path, seconds(1));
  {
    Child alive([&] {
      std::thread([&] {
        for (;;) {
          fs::last_write_time(place / kLockFile, fs::file_time_type::clock::now());
          std::this_thread::sleep_for(milliseconds(10));
        }
      }).detach();
    });
    CHECK(refusal(place.path).find("host node7, process 4711") != std::string::npos);
  }
  CHECK(refusal(place.path, true, kShortWatch) == "");
  // The disk has no locks, so the record holds until it is old.
  write_foreign_record(place.path, seconds(30));
  CHECK(refusal(place.path, false).find("host node7, process 4711") != std::string::npos);
  write_foreign_record(place.path, seconds(90));
  CHECK(refusal(place.path, false) == "");
  CHECK(place.num_files() == 0);
}

TEST_CASE("folder lock: whatever the file says, it is no reason to fail") {
  const testing::TemporaryFolder place;
  for (const std::string text :
       {"", "x", "host: \x1b[31m\nprocess: none\n", "process: 99999999999999999999\n"}) {
    place.write(kLockFile, text);
    CHECK(refusal(place.path) == "");
  }
  const auto owner =
      lock_owner_from("host: a\x1b[1mb\nprocess: 5\nstarted: 6\nmachine: c d\nsince: e\n");
  REQUIRE(owner);
  CHECK(owner->process == ProcessIdentity{"a?[1mb", "c d", 5, 6});
  const LockOwner own = new_lock_owner();
  CHECK(lock_owner_from(text_of(own))->process == own.process);
  // An owner on an unknown machine is treated like one on another machine.
  LockOwner unknown = own;
  unknown.process.machine = "";
  place.write(kLockFile, text_of(unknown));
  CHECK(refusal(place.path, false).find("host " + own.process.host) != std::string::npos);
}

TEST_CASE("file claim: what is read is not removed") {
  const testing::TemporaryFolder place;
  const std::string path = place.write("checksums.json", "{}");
  using Kind = FileClaim::Kind;
  CHECK_FALSE(FileClaim(path, Kind::kRemove).refused());
  {
    Child reader([&] { new FileClaim(path, Kind::kRead); });
    CHECK(FileClaim(path, Kind::kRemove).refused());
    CHECK_FALSE(FileClaim(path, Kind::kRead).refused());
  }
  CHECK_FALSE(FileClaim(path, Kind::kRemove).refused());
  CHECK_FALSE(FileClaim(place / "nowhere", Kind::kRemove).refused());
}

}  // namespace longspan
