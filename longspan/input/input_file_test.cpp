#include "longspan/input/input_file.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

std::string complaint(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "(accepted)";
}

std::string complaint_of(const std::string& path) {
  const std::string of_text = complaint([&] { read_text_file(path, "test file"); });
  CHECK(of_text == complaint([&] { require_readable_file(path, "test file"); }));
  CHECK(first_bytes(path, 4).empty());
  return of_text;
}

#define CHECK_HAS(text, part)                                \
  do {                                                       \
    const std::string said = (text);                         \
    INFO(said);                                              \
    CHECK(said.find(part) != std::string::npos);             \
    CHECK(said.find("the test file ") != std::string::npos); \
  } while (false)

TEST_CASE("input file: only regular files are read, and nothing is waited for") {
  const TemporaryFolder place;
  const std::string pipe = place / "pipe", loop = place / "loop", behind = place / "behind";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink("loop", loop);
  fs::create_symlink("pipe", behind);
  CHECK_HAS(complaint_of(pipe), pipe + ": it is a pipe; wanted is a regular file");
  CHECK_HAS(complaint_of(behind), "it is a pipe");
  CHECK_HAS(complaint_of(place.path), "it is a folder; wanted is a file");
  CHECK_HAS(complaint_of("/dev/zero"), "/dev/zero: it is a device");
  CHECK_HAS(complaint_of(loop), "its symbolic links lead in a circle");
  CHECK_HAS(complaint_of(place / "gone"), "gone: No such file or directory");
  CHECK_HAS(complaint_of(place.write("file", "") + "/x"), "Not a directory");
  CHECK_HAS(complaint_of(place / std::string(300, 'x')), "File name too long");
  CHECK_HAS(complaint_of(place / std::string("fi\0le", 5)), "NUL");

  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string socket = place / "socket";
  REQUIRE(socket.size() < sizeof(address.sun_path));
  socket.copy(address.sun_path, socket.size());
  REQUIRE(::bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  CHECK_HAS(complaint_of(socket), "it is a socket");
  ::close(server);
}

TEST_CASE("input file: what is not there may be left out, and only that") {
  const TemporaryFolder place;
  CHECK_FALSE(InputFile::open_if_there(place / "gone", "test file"));
  CHECK_FALSE(read_text_file_if_there(place / "gone/gone", "test file"));
  CHECK_NOTHROW(require_readable_file_if_there(place / "gone", "test file"));
  REQUIRE(::mkfifo((place / "pipe").c_str(), 0600) == 0);
  fs::create_symlink("loop", place / "loop");
  fs::create_symlink("nowhere", place / "nowhere_to");
  for (const char* name : {"pipe", "loop"}) {
    CHECK_THROWS_AS(InputFile::open_if_there(place / name, "test file"), UserError);
    CHECK_THROWS_AS(require_readable_file_if_there(place / name, "test file"), UserError);
    CHECK(is_there(place / name));
  }
  CHECK(is_there(place / "nowhere_to"));
  CHECK_FALSE(is_there(place / "gone"));
}

TEST_CASE("input file: texts up to a size, without a byte order mark") {
  const TemporaryFolder place;
  const std::string path = place.write("text", "\xef\xbb\xbfgr\xc3\xbc\xc3\x9f\x65\n");
  CHECK(read_text_file(path, "test file") == "gr\xc3\xbc\xc3\x9f\x65\n");
  CHECK(read_text_file_if_there(path, "test file") == "gr\xc3\xbc\xc3\x9f\x65\n");
  CHECK(read_text_file(place.write("empty", ""), "test file").empty());
  CHECK(first_bytes(path, 5) == "\xef\xbb\xbfgr");
  CHECK(first_bytes(place / "empty", 5).empty());
  CHECK_HAS(complaint([&] { read_text_file(path, "test file", 10); }), "more than 10 bytes");
  CHECK_NOTHROW(read_text_file(path, "test file", 11));
  CHECK_HAS(complaint([&] { require_readable_file(path, "test file", 10); }), "more than 10 bytes");
  const std::string large(3 << 20, 'a');
  CHECK(read_text_file(place.write("large", large), "test file") == large);
  // The kernel reports size 0 for this file. The limit holds all the same.
  CHECK_HAS(complaint([] { read_text_file("/proc/self/maps", "test file", 16); }), "16 bytes");
  CHECK(InputFile(path, "test file").size() == 11);
  CHECK(last_input_file() == path);
}

TEST_CASE("input file: lines") {
  const TemporaryFolder place;
  const auto lines_of = [&](const std::string& text) {
    LineReader reader{InputFile(place.write("lines", text), "test file")};
    std::vector<std::string> lines, again;
    std::string line;
    while (reader.next(line)) {
      lines.push_back(line + (reader.ended_with_file() ? "" : "\n"));
      CHECK(reader.number() == std::ssize(lines));
    }
    CHECK_FALSE(reader.next(line));
    reader.rewind();
    while (reader.next(line)) again.push_back(line + (reader.ended_with_file() ? "" : "\n"));
    CHECK(again == lines);
    return lines;
  };
  using Lines = std::vector<std::string>;
  CHECK(lines_of("").empty());
  CHECK(lines_of("\n") == Lines{"\n"});
  CHECK(lines_of("a\n\nb") == Lines{"a\n", "\n", "b"});
  CHECK(lines_of("\xef\xbb\xbf"
                 "a\r\nb\n") == Lines{"a\r\n", "b\n"});
  // Lines that end at the end of the buffer, and past it.
  const std::string part((1 << 20) - 1, 'x');
  CHECK(lines_of(part + "\n" + part + "y\n" + part) == Lines{part + "\n", part + "y\n", part});
}

}  // namespace
}  // namespace longspan
