#include "longspan/pictures/video_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace longspan {
namespace {

/// Numbers of frames are int32 in LLaMA-Factory.
constexpr int64_t kMostFrames = INT32_MAX;
/// Integers up to it are doubles.
constexpr int64_t kMostExact = int64_t{1} << 53;

/// Returns number * num / den, rounded once. nullopt: not positive, or too large to be exact.
std::optional<double> product(int64_t number, int64_t num, int64_t den) {
  if (number <= 0 || num <= 0 || den <= 0) return std::nullopt;
  const int64_t common = std::gcd(number, den);
  number /= common;
  den /= common;
  if (number > kMostExact / num || den > kMostExact) return std::nullopt;
  return static_cast<double>(number * num) / static_cast<double>(den);
}

/// Longer durations are wrong: positions in proportion to them would leave the numbers of tokens.
constexpr double kMostSeconds = 1e7;

std::optional<double> seconds_of(const VideoHeader& header) {
  const std::optional<double> seconds = product(header.ticks, header.tick_num, header.tick_den);
  return seconds && *seconds <= kMostSeconds ? seconds : std::nullopt;
}

/// Returns numpy.linspace(0, last, count).astype(int32).
std::vector<int64_t> spread(int64_t last, int64_t count) {
  std::vector<int64_t> numbers;
  const double step = count > 1 ? static_cast<double>(last) / static_cast<double>(count - 1) : 0;
  for (int64_t i = 0; i < count; ++i) {
    numbers.push_back(static_cast<int64_t>(static_cast<double>(i) * step));
  }
  if (count > 1) numbers.back() = last;
  return numbers;
}

int64_t padded(int64_t count) { return count + count % 2; }

/// Decodes up to `most` frames and counts them.
int64_t frames_there(VideoFile& video, int64_t most) {
  while (video.next() < most && video.decode()) {
  }
  return video.next();
}

}  // namespace

std::vector<int64_t> sampled_frames(const VideoHeader& header, const VideoSampling& sampling,
                                    const std::string& place) {
  const std::optional<double> seconds = seconds_of(header);
  if (!seconds || header.num_frames < 1 || header.num_frames > kMostFrames) {
    throw UserError(fmt::format(
        "{}: the file's header says {} frames and no usable duration, so that no frames can be "
        "chosen by video_fps. Write the video anew (ffmpeg -i ...).",
        place, header.num_frames));
  }
  const double wanted = std::max(1.0, std::floor(*seconds * sampling.fps));
  const int64_t most = std::min(header.num_frames, sampling.most_frames);
  const int64_t count = wanted < static_cast<double>(most) ? static_cast<int64_t>(wanted) : most;
  return spread(header.num_frames - 1, count);
}

VideoSample sample_video(const std::string& path, const VideoSampling& sampling,
                         int64_t most_pixels) {
  VideoFile video(path, most_pixels);
  const VideoHeader header = video.header();
  VideoSample sample;
  sample.size = {header.width, header.height};
  const std::optional<double> rate = product(1, header.rate_num, header.rate_den);
  if (!rate) {
    throw UserError(fmt::format(
        "{}: the file's header has no usable frame rate. Write the video anew (ffmpeg -i ...).",
        path));
  }
  int64_t num_there = 0;
  if (header.num_frames == 0) {
    sample.frames = spread(sampling.most_frames - 1, sampling.most_frames);
    num_there = frames_there(video, sampling.most_frames);
  } else {
    sample.frames = sampled_frames(header, sampling, path);
    const int64_t num_packets = video.count_packets();
    num_there = std::ranges::lower_bound(sample.frames, num_packets) - sample.frames.begin();
    if (padded(num_there) != padded(std::ssize(sample.frames))) {
      throw UserError(fmt::format(
          "{}: the file's header says {} frames, and the file has {}: it is truncated, or its "
          "beginning is cut by an edit list. Write the video anew (ffmpeg -i ...).",
          path, header.num_frames, num_packets));
    }
  }
  if (num_there == 0) throw UserError(fmt::format("{}: the video has no frame", path));
  for (const int64_t frame : sample.frames) {
    // In LLaMA-Factory's order of roundings.
    sample.times.push_back(static_cast<double>(frame) / *rate * sampling.fps / sampling.fps);
  }
  const std::optional<double> seconds = seconds_of(header);
  const int64_t num_chosen = header.num_frames == 0 ? num_there : std::ssize(sample.frames);
  sample.fps = seconds ? static_cast<double>(num_chosen) / *seconds : sampling.fps;
  sample.frames.resize(static_cast<size_t>(num_there));
  return sample;
}

}  // namespace longspan
