// Pixels read ahead: order, bound on memory, errors, frames that nobody takes.
#include "longspan/session/pixel_reader.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace longspan {
namespace {
namespace with_frames_read_ahead {

constexpr int64_t kBytes = 4 * 100;  // of a frame

std::shared_ptr<const RowPictures> row_of(int num_pictures, int64_t num_frames = 1) {
  RowPictures row;
  for (int i = 0; i < num_pictures; ++i) {
    row.add({.files = {std::to_string(i)}, .grid = {num_frames, 2, 2}, .num_features = num_frames});
  }
  return std::make_shared<const RowPictures>(std::move(row));
}

std::vector<PictureFrame> frames_of(const RowPictures& row) {
  std::vector<PictureFrame> frames;
  for (size_t i = 0; i < row.pictures.size(); ++i) {
    for (int64_t t = 0; t < row.pictures[i].grid.t; ++t) frames.push_back({i, t});
  }
  return frames;
}

/// Counts the frames that are read.
struct Source {
  std::atomic<int> read = 0;
  std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> read_by_caller = 0;

  at::Tensor operator()(const Picture& picture, int64_t t) {
    ++read;
    if (std::this_thread::get_id() == caller) ++read_by_caller;
    if (picture.files.front() == "bad") throw std::runtime_error("bad.png is broken");
    return at::full({1, 100}, static_cast<double>(std::stoi(picture.files.front()) * 10 + t));
  }
  FramePatches patches() {
    return [this](const Picture& picture, int64_t t) { return (*this)(picture, t); };
  }
  void wait_for(int count) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (read < count && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    REQUIRE(read >= count);
  }
};

void take_all(PixelReader& reader, const RowPictures& row) {
  for (const auto& [picture, t] : frames_of(row)) {
    const at::Tensor patches_PX = reader.take(row.pictures[picture], t);
    CHECK(patches_PX.size(1) == 100);
    CHECK(patches_PX[0][0].item<double>() == static_cast<double>(10 * picture) + t);
  }
}

TEST_CASE("pixel reader: announced frames are read once, in their order, by the thread") {
  Source source;
  PixelReader reader(source.patches());
  const auto row = row_of(3, 4), next = row_of(2);
  reader.announce(row, frames_of(*row));
  reader.announce(next, frames_of(*next));
  source.wait_for(14);
  take_all(reader, *row);
  take_all(reader, *next);
  CHECK(source.read == 14);
  CHECK(source.read_by_caller == 0);
}

TEST_CASE("pixel reader: frames with two uses are read once, ahead or by the one who takes them") {
  for (const bool waits : {true, false}) {
    CAPTURE(waits);
    Source source;
    PixelReader reader(source.patches());
    const auto row = row_of(3, 4), next = row_of(2);
    reader.announce(row, frames_of(*row), /*num_uses=*/2);
    reader.announce(next, frames_of(*next), /*num_uses=*/2);
    if (waits) source.wait_for(14);
    for (const auto& one : {row, row, next, next}) take_all(reader, *one);
    CHECK(source.read == 14);
    take_all(reader, *next);  // no use is left
    CHECK(source.read == 16);
  }
}

TEST_CASE(
    "pixel reader: frames with two uses stay within the bound, and are read again beyond it") {
  Source source;
  PixelReader reader(source.patches(), /*most_bytes=*/2 * kBytes);
  const auto row = row_of(9);
  reader.announce(row, frames_of(*row), /*num_uses=*/2);
  take_all(reader, *row);
  const int first = source.read;
  CHECK(first >= 9);
  take_all(reader, *row);
  CHECK(source.read > first);  // the pixels of all nine never waited together
  CHECK(source.read <= 18);
}

TEST_CASE("pixel reader: a second use may have other frames than the first") {
  Source source;
  PixelReader reader(source.patches());
  const auto row = row_of(4);
  reader.announce(row, frames_of(*row), /*num_uses=*/2);
  for (const size_t i : {1, 3}) reader.take(row->pictures[i], 0);  // another share of the row
  take_all(reader, *row);
  CHECK(source.read == 4);
}

TEST_CASE("pixel reader: no frame is begun while the pixels that wait are too many") {
  Source source;
  PixelReader reader(source.patches(), /*most_bytes=*/2 * kBytes);
  const auto row = row_of(9);
  reader.announce(row, frames_of(*row));
  source.wait_for(2);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(source.read == 2);
  reader.take(row->pictures[0], 0);
  source.wait_for(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(source.read == 3);
}

TEST_CASE("pixel reader: frames that were not announced are read at once") {
  Source source;
  PixelReader reader(source.patches());
  const auto row = row_of(3), other = row_of(3);
  take_all(reader, *row);
  CHECK(source.read_by_caller == 3);
  reader.announce(row, frames_of(*row));
  source.wait_for(6);
  take_all(reader, *other);  // equal pictures, and another row
  CHECK(source.read_by_caller == 6);
  take_all(reader, *row);
  CHECK(source.read_by_caller == 6);
}

TEST_CASE("pixel reader: frames that nobody takes make room for later ones") {
  Source source;
  PixelReader reader(source.patches(), /*most_bytes=*/2 * kBytes);
  const auto left = row_of(5), row = row_of(4);
  reader.announce(left, frames_of(*left));
  reader.announce(row, frames_of(*row));
  source.wait_for(2);
  take_all(reader, *row);
  CHECK(source.read <= 7);  // the first two, perhaps one more, and the row's
}

TEST_CASE("pixel reader: an error reaches the one who takes the frame") {
  Source source;
  PixelReader reader(source.patches());
  RowPictures pictures;
  pictures.add({.files = {"bad"}, .grid = {1, 2, 2}, .num_features = 1});
  pictures.add({.files = {"1"}, .grid = {1, 2, 2}, .num_features = 1});
  const auto row = std::make_shared<const RowPictures>(std::move(pictures));
  reader.announce(row, frames_of(*row));
  source.wait_for(2);
  CHECK_THROWS_WITH(reader.take(row->pictures[0], 0), "bad.png is broken");
  CHECK(reader.take(row->pictures[1], 0).size(1) == 100);
  reader.announce(row, {{0, 0}}, /*num_uses=*/2);
  for (int use = 0; use < 2; ++use) {
    CHECK_THROWS_WITH(reader.take(row->pictures[0], 0), "bad.png is broken");
  }
}

TEST_CASE("pixel reader: ends while frames wait") {
  Source source;
  const auto row = row_of(50);
  {
    PixelReader reader(source.patches(), kBytes);
    reader.announce(row, frames_of(*row));
  }
  CHECK(source.read <= 2);
}

}  // namespace with_frames_read_ahead
}  // namespace
}  // namespace longspan
