#include "longspan/text/bars.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "longspan/base/user_error.h"

namespace fs = std::filesystem;

namespace longspan {
namespace {

std::string picture_of(const std::vector<std::string>& rows, const std::vector<BarPanel>& panels,
                       int width = 600, int height = 300) {
  const fs::path path =
      fs::temp_directory_path() / ("longspan-bars-" + std::to_string(getpid()) + ".png");
  write_bars(path.string(), "A title", rows, panels, width, height);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  fs::remove(path);
  return bytes;
}

int byte(const std::string& png, size_t offset) { return static_cast<uint8_t>(png.at(offset)); }

}  // namespace

TEST_CASE("bars: a PNG of the size asked for, that depends on every value, note and mark") {
  const BarPanel time{.title = "Time",
                      .x_label = "ms",
                      .parts = {{"forward", {1, 2, 3}}, {"backward", {2, 4, 5}}},
                      .notes = {"3", "6", "8"},
                      .marks = {2.5, 5, 7},
                      .mark_label = "expected"};
  const std::vector<std::string> rows{"one", "two", "three"};
  const std::string picture = picture_of(rows, {time, time}, 700, 250);
  CHECK(picture.substr(1, 3) == "PNG");
  CHECK(byte(picture, 18) * 256 + byte(picture, 19) == 700);
  CHECK(byte(picture, 22) * 256 + byte(picture, 23) == 250);

  const std::string before = picture_of(rows, {time});
  BarPanel changed = time;
  changed.parts[1].values[0] = 3;
  CHECK(picture_of(rows, {changed}) != before);
  changed = time;
  changed.notes[2] = "9";
  CHECK(picture_of(rows, {changed}) != before);
  changed = time;
  changed.marks[1] = 1;
  CHECK(picture_of(rows, {changed}) != before);
  CHECK(picture_of({"one", "two", "third"}, {time}) != before);
  CHECK(picture_of(rows, {time}) == before);
}

TEST_CASE("bars: nothing to draw, missing and absurd values are no trouble") {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const BarPanel odd{.title = "odd",
                     .parts = {{"", {nan, -1, inf, 1e-300, 1e300}}, {"short", {1}}},
                     .notes = {"a"},
                     .marks = {nan, inf, -3}};
  CHECK(picture_of({"a", "b", "c", "d", "e", "f"}, {odd}).substr(1, 3) == "PNG");
  CHECK(picture_of({"a"}, {odd, odd, odd, odd}, 100, 100).substr(1, 3) == "PNG");
  CHECK(picture_of({"a"}, {BarPanel{}}).substr(1, 3) == "PNG");
  CHECK(picture_of({}, {}).substr(1, 3) == "PNG");
}

TEST_CASE("bars: a file that cannot be written is the user's to mend") {
  CHECK_THROWS_AS(write_bars("/no/such/folder/a.png", "t", {}, {}), UserError);
}

}  // namespace longspan
