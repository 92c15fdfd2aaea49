#include "longspan/text/plot.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/testing/temporary_folder.h"

namespace fs = std::filesystem;

namespace longspan {
namespace {

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Returns a 32-bit number of a PNG's header, which starts 16 bytes into the file: width, height.
uint32_t header_number(const std::string& png, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(png.at(offset + i));
  return value;
}

Curve decay(const std::string& label, double rate) {
  Curve curve{.label = label};
  for (int i = 0; i < 60; ++i) {
    curve.x.push_back(i);
    curve.y.push_back(4 * std::exp(-rate * i) + 0.05 * std::sin(i * 7.0));
  }
  return curve;
}

}  // namespace

TEST_CASE("plot: numbers too small or too far apart for a scale are drawn all the same") {
  const fs::path path =
      fs::temp_directory_path() / ("longspan-small-" + std::to_string(getpid()) + ".png");
  const double tiny = std::numeric_limits<double>::denorm_min();
  const double least = std::numeric_limits<double>::min(), large = 9e299;
  for (const auto& [a, b] : {std::pair{tiny, 3 * tiny}, {least, 2 * least}, {-large, large}}) {
    write_plot(path.string(), {{"a", "x", "y", {Curve{.label = "c", .x = {a, b}, .y = {b, a}}}}});
    CHECK(bytes_of(path).substr(1, 3) == "PNG");
    fs::remove(path);
  }
}

TEST_CASE("plot: a PNG of the size asked for, that depends on the curves") {
  const fs::path path =
      fs::temp_directory_path() / ("longspan-" + std::to_string(getpid()) + ".png");
  Curve a = decay("SP = 1", 0.05), b = decay("ring, SP = 2", 0.05), raw = decay("", 0.06);
  b.dashed = true;
  raw.faint = true;
  raw.y[10] = std::numeric_limits<double>::quiet_NaN();
  const PlotPanel loss{"Training loss", "step", "loss", {raw, a, b}};
  write_plot(path.string(), {loss, {"Learning rate", "step", "lr", {decay("lr", 0.1)}}}, 900, 400);
  const std::string two = bytes_of(path);
  CHECK(two.substr(1, 3) == "PNG");
  CHECK(header_number(two, 16) == 900);
  CHECK(header_number(two, 20) == 400);

  write_plot(path.string(), {loss});
  const std::string one = bytes_of(path);
  CHECK(header_number(one, 16) == 1000);
  PlotPanel solid = loss;
  solid.curves[2].dashed = false;
  write_plot(path.string(), {solid});
  CHECK(bytes_of(path) != one);
  fs::remove(path);
}

TEST_CASE("plot: nothing to draw, one point, equal and huge values are no trouble") {
  const fs::path path =
      fs::temp_directory_path() / ("longspan-edge-" + std::to_string(getpid()) + ".png");
  const double inf = std::numeric_limits<double>::infinity();
  for (const Curve& curve :
       {Curve{}, Curve{.label = "one", .x = {3}, .y = {2}}, Curve{.x = {1, 2}, .y = {5, 5}},
        Curve{.x = {0, 1e9}, .y = {-1e300, 1e300}}, Curve{.x = {1, 2}, .y = {1e-12, 2e-12}},
        Curve{.x = {1, 2, 3}, .y = {inf, -inf, 1}}, Curve{.x = {1, 2, 3}, .y = {1}},
        Curve{.x = {1, 1 + 1e-16}, .y = {1e16, 1e16 + 2}}, Curve{.x = {1, 1e-320}, .y = {1, 0}},
        Curve{.x = {1e15, 1e15 + 0.25}, .y = {0.1, 0.1 + 1e-17}, .dashed = true}}) {
    write_plot(path.string(), {{"title", "x", "y", {curve}}}, 200, 150);
    CHECK(bytes_of(path).substr(1, 3) == "PNG");
    fs::remove(path);
  }
  write_plot(path.string(), {});
  CHECK(fs::exists(path));
  fs::remove(path);
}

TEST_CASE("plot: a file that cannot be written is the user's to mend") {
  CHECK_THROWS_AS(write_plot("/no/such/folder/a.png", {{"t", "x", "y", {}}}), UserError);
  const testing::TemporaryFolder folder;
  const std::string pipe = folder / "pipe.png";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::string message;
  try {
    write_plot(pipe, {});
  } catch (const UserError& error) {
    message = error.what();
  }
  CHECK(message == "Cannot write " + pipe + ": it is a pipe; wanted is a regular file");
}

}  // namespace longspan
