#include "longspan/pictures/video_file.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "longspan/files/checksum.h"
#include "longspan/files/program_library.h"

namespace longspan {
namespace {

constexpr const char* kLibrary = "liblongspan_video.so";

struct LoadedDecoder {
  const VideoEntry* entry = nullptr;
  std::string reason;
};

LoadedDecoder load_decoder() {
  const std::string path = program_library(kLibrary);
  if (path.empty()) {
    return {nullptr, "this build has no decoder of videos, since FFmpeg's headers were missing"};
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {nullptr, dlerror()};
  auto* const entry =
      reinterpret_cast<const VideoEntry* (*)()>(dlsym(library, "longspan_video_entry"));
  if (entry == nullptr) return {nullptr, path + " has no entry point"};
  return {entry(), {}};
}

const LoadedDecoder& loaded_decoder() {
  static const LoadedDecoder once = load_decoder();
  return once;
}

const VideoEntry& decoder_of(const std::string& path) {
  const LoadedDecoder& loaded = loaded_decoder();
  if (loaded.entry != nullptr) return *loaded.entry;
  throw NoVideoDecoder(fmt::format(
      "{}: files of videos cannot be read: {}. Install FFmpeg's libraries (Debian: apt-get install "
      "libavformat-dev libavcodec-dev libswscale-dev libavutil-dev) and build again, or give the "
      "video as a list of pictures (ffmpeg -i video.mp4 -vf fps=2 frame%04d.png).",
      path, loaded.reason));
}

}  // namespace

VideoDecoder find_video_decoder() {
  const LoadedDecoder& loaded = loaded_decoder();
  return {loaded.entry != nullptr ? loaded.entry->ffmpeg : "", loaded.reason};
}

void VideoFile::Close::operator()(OpenVideo* video) const { loaded_decoder().entry->close(video); }

VideoFile::VideoFile(const std::string& path, int64_t most_pixels) : file_(path, "video") {
  VideoTrouble trouble;
  video_.reset(decoder_of(path).open(file_.descriptor(), most_pixels, &header_, &trouble));
  if (video_ == nullptr) fail(trouble);
  if (header_.width < 1 || header_.height < 1 || header_.width > kMostPixels ||
      header_.height > kMostPixels || header_.width * header_.height > most_pixels) {
    throw UserError(fmt::format(
        "{}: frames of {} x {} pixels; a frame may have 1 to {} pixels. Make the video smaller.",
        path, header_.width, header_.height, most_pixels));
  }
}

void VideoFile::fail(const VideoTrouble& trouble) const {
  throw UserError(
      fmt::format("{}: the video cannot be read: {}. Remove it, or write it anew (ffmpeg -i ...).",
                  path(), trouble.text));
}

uint64_t VideoFile::version() const {
  struct stat status{};
  if (fstat(file_.descriptor(), &status) != 0) {
    throw UserError(fmt::format("{}: the video cannot be read any more", path()));
  }
  const int64_t facts[] = {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
  Xxh64 hash;
  hash.add(facts, sizeof(facts));
  return hash.value();
}

int64_t VideoFile::count_packets() {
  VideoTrouble trouble;
  const int64_t count = loaded_decoder().entry->count_packets(video_.get(), &trouble);
  if (count < 0) fail(trouble);
  return count;
}

bool VideoFile::decode() {
  VideoTrouble trouble;
  const VideoStep step = loaded_decoder().entry->next(video_.get(), &trouble);
  if (step == VideoStep::kTrouble) fail(trouble);
  if (step == VideoStep::kEnd) return false;
  ++next_;
  return true;
}

Raster VideoFile::frame() const {
  Raster raster{.mode = PictureMode::kRgb, .size = {header_.width, header_.height}, .pixels = {}};
  raster.pixels.resize(static_cast<size_t>(3 * header_.width * header_.height));
  VideoTrouble trouble;
  if (!loaded_decoder().entry->rgb(video_.get(), raster.pixels.data(), &trouble)) fail(trouble);
  return raster;
}

}  // namespace longspan
