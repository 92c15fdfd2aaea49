#include "longspan/memory/spill_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/memory/nameless_file.h"

namespace longspan {
namespace {

constexpr int64_t kPageBytes = 4096;  // space is reserved in whole pages

int64_t rounded_up(int64_t num_bytes) {
  return (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

SpillFile::SpillFile(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) fail("cannot be made", error.value());
  descriptor_ = open_nameless(folder_);
  if (descriptor_ < 0) fail("takes no file", errno);
}

SpillFile::~SpillFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t SpillFile::reserve(int64_t num_bytes) {
  const int64_t size = rounded_up(num_bytes);
  const std::lock_guard lock(mutex_);
  live_ += size;
  peak_ = std::max(peak_, live_);
  // Rows of the same length recur, so a free place of exactly this size is common.
  if (const auto found = free_.find(size); found != free_.end()) {
    const int64_t place = found->second;
    free_.erase(found);
    return place;
  }
  const int64_t place = end_;
  end_ += size;
  return place;
}

void SpillFile::release(int64_t place, int64_t num_bytes) {
  const int64_t size = rounded_up(num_bytes);
  const std::lock_guard lock(mutex_);
  live_ -= size;
  free_.emplace(size, place);
  if (live_ > 0) return;
  // No bytes are in use: begin again at offset 0, so that rows of many lengths do not fragment the
  // file.
  free_.clear();
  end_ = 0;
}

void SpillFile::write(int64_t place, const void* data, int64_t num_bytes) {
  const char* from = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, from, static_cast<size_t>(num_bytes), place);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("takes no more activations", written < 0 ? errno : ENOSPC);
    from += written;
    place += written;
    num_bytes -= written;
  }
}

void SpillFile::read(int64_t place, void* data, int64_t num_bytes) {
  char* to = static_cast<char*>(data);
  while (num_bytes > 0) {
    const ssize_t got = ::pread(descriptor_, to, static_cast<size_t>(num_bytes), place);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail("does not give back the activations written to it", got < 0 ? errno : EIO);
    to += got;
    place += got;
    num_bytes -= got;
  }
}

int64_t SpillFile::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void SpillFile::fail(const char* what, int error) const {
  throw UserError(fmt::format(
      "offload_folder {} {} ({}). {} Or keep activations in memory: offload_activations: true, or "
      "false.",
      folder_, what, std::strerror(error), remedy_for(error)));
}

}  // namespace longspan
