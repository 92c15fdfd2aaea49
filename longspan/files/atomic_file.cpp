#include "longspan/files/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/files/left_temporary.h"
#include "longspan/files/written_names.h"

namespace longspan {

void throw_disk_error(int error, const std::string& message) {
  if (error == ENOSPC || error == EDQUOT) throw DiskFullError(message);
  throw UserError(message);
}

const char* remedy_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space or write to another disk.";
    case EFBIG:
      return "Free some space, write to another disk, or raise the limit on the size of files "
             "(ulimit -f).";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Choose a folder that you may write to.";
    case ENOENT:
    case ENOTDIR:
      return "Create the folder first.";
    default:
      return "Check the disk and the folder.";
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  // Several processes, and several threads of a process, may write to one folder.
  const std::filesystem::path target(path_);
  temporary_ = (target.parent_path() / temporary_name(target.filename().string())).string();
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(const void* data, size_t num_bytes) {
  const char* cursor = static_cast<const char*>(data);
  while (num_bytes > 0) {
    // Linux writes at most 2 GiB a call; less may be written when the disk is nearly full.
    const ssize_t written =
        ::write(descriptor_, cursor, std::min<size_t>(num_bytes, size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    if (written == 0) fail(ENOSPC);
    cursor += written;
    num_bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail(errno);
  // Delayed allocation may report a full disk only here.
  if (::close(std::exchange(descriptor_, -1)) != 0 ||
      ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    fail(error);
  }
  // The rename itself survives a power cut only once the folder is on the disk.
  sync_folder(std::filesystem::path(path_).parent_path().string());
}

void AtomicFile::fail(int error) const {
  throw_disk_error(error, fmt::format("Cannot write {}: {}. {}", path_, std::strerror(error),
                                      remedy_for(error)));
}

void append_to_file(const std::string& path, std::string_view content) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  int error = descriptor < 0 ? errno : 0;
  while (error == 0 && !content.empty()) {
    const ssize_t written = ::write(descriptor, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      error = written < 0 ? errno : ENOSPC;
    } else {
      content.remove_prefix(static_cast<size_t>(written));
    }
  }
  if (descriptor >= 0 && ::close(descriptor) != 0 && error == 0) error = errno;
  if (error == 0) return;
  throw_disk_error(error, fmt::format("{}: cannot be written ({}). {}", path, std::strerror(error),
                                      remedy_for(error)));
}

void sync_folder(const std::string& path) {
  const int descriptor =
      ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error = descriptor < 0 ? errno : 0;
  // Some network file systems cannot sync a folder, and need not.
  if (descriptor >= 0 && ::fsync(descriptor) != 0 && errno != EINVAL) error = errno;
  if (descriptor >= 0) ::close(descriptor);
  // A folder that may be written to but not read cannot be opened.
  if (error == 0 || error == EACCES) return;
  throw_disk_error(
      error, fmt::format("Cannot write {}: {}. {}", path, std::strerror(error), remedy_for(error)));
}

void put_in_place(const std::string& from, const std::string& to, const std::string& replaced) {
  std::error_code error;
  remove_own_folder(replaced);
  const bool exists = std::filesystem::exists(to, error);
  const auto move = [](const std::string& source, const std::string& target) {
    if (::rename(source.c_str(), target.c_str()) == 0) return;
    const int error = errno;
    throw_disk_error(error, fmt::format("Cannot rename {} to {}: {}. {}", source, target,
                                        std::strerror(error), remedy_for(error)));
  };
  if (exists && ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    move(from, replaced);
  } else {
    if (exists) move(to, replaced);
    move(from, to);
  }
  sync_folder(std::filesystem::path(to).parent_path().string());
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

}  // namespace longspan
