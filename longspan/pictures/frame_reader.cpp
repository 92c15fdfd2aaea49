#include "longspan/pictures/frame_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace longspan {
namespace {

constexpr size_t kMostIdle = 2;

}  // namespace

/// Returns the file open before this frame, or nullptr.
std::unique_ptr<VideoFile> FrameReader::take(const std::string& path, int64_t frame) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find_if(idle_, [&](const std::unique_ptr<VideoFile>& video) {
    return video->path() == path && video->next() <= frame;
  });
  if (found == idle_.end()) return nullptr;
  std::unique_ptr<VideoFile> video = std::move(*found);
  idle_.erase(found);
  return video;
}

void FrameReader::give_back(std::unique_ptr<VideoFile> video) {
  const std::scoped_lock lock(mutex_);
  if (idle_.size() == kMostIdle) idle_.erase(idle_.begin());
  idle_.push_back(std::move(video));
}

std::vector<Raster> FrameReader::read(const std::string& path, uint64_t version,
                                      const std::vector<int64_t>& frames) {
  std::unique_ptr<VideoFile> video = take(path, frames.front());
  if (video == nullptr) {
    video = std::make_unique<VideoFile>(path);
    if (video->version() != version) {
      throw UserError(
          fmt::format("{}: the video has changed since the run read its data sets. Leave videos as "
                      "they are during a run.",
                      path));
    }
  }
  std::vector<Raster> rasters;
  for (const int64_t frame : frames) {
    if (!rasters.empty() && video->next() == frame + 1) {
      rasters.push_back(rasters.back());
      continue;
    }
    while (video->next() <= frame) {
      if (video->decode()) continue;
      throw UserError(
          fmt::format("{}: the video ends after {} frames, and frame {} is wanted. Its header or "
                      "its data are wrong: write it anew (ffmpeg -i ...).",
                      path, video->next(), frame + 1));
    }
    rasters.push_back(video->frame());
  }
  give_back(std::move(video));
  return rasters;
}

void require_frames(const std::string& path, uint64_t version, const std::vector<int64_t>& frames) {
  FrameReader reader;
  for (const int64_t frame : frames) reader.read(path, version, {frame});
}

}  // namespace longspan
