#include "longspan/files/left_temporary.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

#include "longspan/files/atomic_file.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// A temporary name of a process that has ended.
std::string name_of_a_dead_process() {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string name = temporary_name("model.safetensors");
    static_cast<void>(!::write(ends[1], name.data(), name.size()));
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string name(300, '\0');
  const ssize_t size = ::read(ends[0], name.data(), name.size());
  ::close(ends[0]);
  REQUIRE(size > 0);
  name.resize(static_cast<size_t>(size));
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  return name;
}

}  // namespace

TEST_CASE("left temporary: a name tells its writer, and no other name is one") {
  const ProcessIdentity own = own_process();
  CHECK(own.process == ::getpid());
  CHECK_FALSE(is_gone(own));
  const std::string name = temporary_name("chat.v1.json");
  CHECK(name != temporary_name("chat.v1.json"));
  const auto read = temporary_from(name);
  REQUIRE(read);
  CHECK(read->name == "chat.v1.json");
  CHECK(read->process == own.process);
  CHECK(read->started == own.started);
  CHECK(temporary_from(temporary_name(std::string(300, 'x'))));
  CHECK(temporary_name(std::string(300, 'x')).size() < 256);
  for (const std::string other :
       {".tmp", ".x.1234-0.tmp", ".longspan-.partial", ".longspan-x.partial", ".longspan-lock",
        ".longspan-x.0123abcd.12.34.partial", ".longspan-x.0123abcd.12.34.-5.partial",
        ".longspan-x.0123abcd.12.34.05.partial", ".longspan-x.0123ABCD.12.34.5.partial",
        ".longspan-x.0123abc.12.34.5.partial", ".longspan-x.0123abcd.0.34.5.partial",
        ".longspan-.0123abcd.12.34.5.partial", ".longspan-x.0123abcd.12.34.5.partial~",
        "longspan-x.0123abcd.12.34.5.partial", ".longspan-x.0123abcd.12.34.5 .partial",
        ".longspan-x.0123abcd.99999999999999999999.34.5.partial"}) {
    CHECK_MESSAGE(!temporary_from(other), other);
  }
  CHECK(temporary_from(".longspan-x.0123abcd.12.34.5.partial"));
}

TEST_CASE("left temporary: those of dead processes go, and nothing else") {
  const testing::TemporaryFolder place;
  const std::string dead = name_of_a_dead_process(), live = temporary_name("x");
  const ProcessIdentity own = own_process();
  // Names of an earlier process with this one's number, and of another machine.
  const auto parts = temporary_from(live);
  REQUIRE(parts);
  const std::string before =
      fmt::format(".longspan-x.{}.{}.{}.0.partial", parts->machine, own.process, own.started + 1);
  const std::string elsewhere = ".longspan-x.00000000.12.34.5.partial";
  for (const std::string& name : {dead, live, before, elsewhere}) place.write(name, "x");
  const std::string linked = name_of_a_dead_process(), folder = name_of_a_dead_process();
  place.write("thesis", "years");
  fs::create_symlink(place / "thesis", place / linked);
  place.write(folder + "/chapter", "1");
  place.write("below/" + dead, "x");
  place.write(".tmp/thesis", "x");
  place.write(".notes.tmp", "x");
  remove_left_temporaries(place.path, /*folder_is_ours=*/false);
  CHECK_FALSE(fs::exists(place / dead));
  if (own.started > 0) CHECK_FALSE(fs::exists(place / before));
  const std::set<std::string> kept{live,     elsewhere,    linked,          folder + "/chapter",
                                   "thesis", ".notes.tmp", "below/" + dead, ".tmp/thesis"};
  for (const std::string& name : kept) CHECK_MESSAGE(fs::exists(place / name), name);
  remove_left_temporaries(place.path, /*folder_is_ours=*/true);
  CHECK_FALSE(fs::exists(place / elsewhere));
  for (const std::string& name : kept) {
    if (name != elsewhere) CHECK_MESSAGE(fs::exists(place / name), name);
  }
  remove_left_temporaries(place / "nowhere", true);
}

TEST_CASE("left temporary: a process of which the machine is unknown is not known to be gone") {
  const auto dead = temporary_from(name_of_a_dead_process());
  REQUIRE(dead);
  ProcessIdentity process = own_process();
  process.process = dead->process;
  CHECK(is_gone(process));
  process.machine = "";
  CHECK_FALSE(is_gone(process));
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  process.machine = own_process().machine;
  const bool gone = is_gone(process);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(process.machine.empty());
  CHECK_FALSE(gone);
}

TEST_CASE("left temporary: an older version's names") {
  const auto old = old_temporary_from(".chat.v1.json.4711-12.tmp");
  REQUIRE(old);
  CHECK(old->name == "chat.v1.json");
  CHECK(old->process == 4711);
  for (const std::string other :
       {".tmp", ".1-2.tmp", "..1-2.tmp", "x.1-2.tmp", ".x.1-2.tmp~", ".x.1-2", ".x.1.tmp",
        ".x.0-2.tmp", ".x.1-.tmp", ".x.-2.tmp", ".x.1-2-3.tmp", ".x.01-2.tmp", ".x.a-2.tmp"}) {
    CHECK_MESSAGE(!old_temporary_from(other), other);
  }
  const testing::TemporaryFolder place;
  const auto dead = temporary_from(name_of_a_dead_process());
  REQUIRE(dead);
  const auto name_of = [&](const std::string& name, int64_t process) {
    return fmt::format(".{}.{}-0.tmp", name, process);
  };
  const std::string left = name_of("trainer_log.jsonl", dead->process),
                    report = name_of("all_results.json", dead->process),
                    live = name_of("trainer_log.jsonl", ::getppid()),
                    thesis = name_of("thesis", dead->process),
                    linked = name_of("config.json", dead->process);
  for (const std::string& name : {left, report, live, thesis}) place.write(name, "x");
  fs::create_symlink(place / thesis, place / linked);
  remove_left_temporaries(place.path, /*folder_is_ours=*/true);
  CHECK(fs::exists(place / left));  // no run has written here
  place.write("trainer_log.jsonl", "{}");
  remove_left_temporaries(place.path, /*folder_is_ours=*/false);
  CHECK(fs::exists(place / left));
  remove_left_temporaries(place.path, /*folder_is_ours=*/true);
  CHECK_FALSE(fs::exists(place / left));
  CHECK_FALSE(fs::exists(place / report));
  for (const std::string& name : {live, thesis, linked}) {
    CHECK_MESSAGE(fs::exists(fs::symlink_status(place / name)), name);
  }
}

TEST_CASE("atomic file: the name under which it is written is a temporary one") {
  const testing::TemporaryFolder place;
  AtomicFile file(place / "config.json");
  REQUIRE(place.num_files() == 1);
  const auto name = temporary_from(fs::directory_iterator(place.path)->path().filename().string());
  REQUIRE(name);
  CHECK(name->name == "config.json");
  file.commit();
  CHECK(fs::exists(place / "config.json"));
  CHECK(place.num_files() == 1);
}

}  // namespace longspan
