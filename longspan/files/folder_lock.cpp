#include "longspan/files/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "longspan/files/atomic_file.h"
#include "longspan/files/descriptor.h"
#include "longspan/files/left_temporary.h"
#include "longspan/files/lock_owner.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kBetweenTries{20};
/// How long to wait for the lock of a process that has ended, which may still be exiting.
constexpr milliseconds kForTheDead{10'000};
/// Retries, since a refused process may remove the folder that it had created.
constexpr int kTries = 50;
constexpr size_t kMostOfRecord = 4096;

/// Whether the descriptor is still the file of that name.
bool is_at(int descriptor, const std::string& path) {
  struct stat one{}, other{};
  return ::fstat(descriptor, &one) == 0 && ::lstat(path.c_str(), &other) == 0 &&
         one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

std::string content_of(int descriptor) {
  std::string text(kMostOfRecord, '\0');
  const ssize_t num_read = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, num_read)));
  return text;
}

/// Opens without waiting for a pipe's other end and without following a link.
Descriptor open_lock(const std::string& path, int flags) {
  return Descriptor(
      ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666));
}

std::optional<milliseconds> touched_at(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return milliseconds(status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec / 1'000'000);
}

/// Returns the time of the folder's disk, which may be another machine's.
std::optional<milliseconds> now_in(const std::string& folder) {
  const std::string path = folder + "/" + temporary_name("now");
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file < 0) return std::nullopt;
  const std::optional<milliseconds> now = touched_at(path);
  ::unlink(path.c_str());
  return now;
}

bool knows_no_locks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

[[noreturn]] void busy(const std::string& key, const std::string& folder,
                       const std::optional<LockOwner>& owner) {
  throw FolderBusyError(fmt::format(
      "{} {} is in use by another run: {}. Two runs would mix their files there; nothing was "
      "touched. Wait until it has ended, stop it, or choose another folder.",
      key, folder,
      owner ? fmt::format("host {}, process {}, since {}", owner->process.host,
                          owner->process.process, owner->since)
            : fmt::format("its {} does not say by which", kLockFile)));
}

/// Whether any process touches the file while it is watched.
bool is_touched(const std::string& path, milliseconds watch) {
  const std::optional<milliseconds> before = touched_at(path);
  for (const auto end = Clock::now() + watch; before && Clock::now() < end;) {
    std::this_thread::sleep_for(kBetweenTries);
    open_lock(path, O_RDONLY);  // a network disk updates its view when a file is opened
    if (touched_at(path) != before) return true;
  }
  return false;
}

/// Whether the owner that the file names may still run. Called where the lock is free, or where the
/// disk has no locks.
bool may_live(const LockOwner& owner, const std::string& folder, const LockTimes& times,
              bool disk_knows_locks) {
  const std::string path = folder + "/" + kLockFile;
  if (is_here(owner.process)) return !disk_knows_locks && !is_gone(owner.process);
  const std::optional<milliseconds> now = now_in(folder), touched = touched_at(path);
  if (now && touched && *now - *touched > times.silence) return false;
  return !disk_knows_locks || is_touched(path, times.watch);
}

/// Touches the file every few seconds, by its own thread and descriptor. A touch may hang with its
/// disk, and must block no other thread.
class FolderBeat {
 public:
  /// Throws std::system_error where no thread can be started.
  void start(const Descriptor& file, milliseconds interval) {
    shared_->file = Descriptor(::fcntl(file, F_DUPFD_CLOEXEC, 0));
    thread_ = std::thread([shared = shared_, interval] {
      std::unique_lock lock(shared->mutex);
      while (!shared->changed.wait_for(lock, interval, [&] { return shared->told_to_end; })) {
        lock.unlock();
        static_cast<void>(::futimens(shared->file, nullptr));
        lock.lock();
      }
      shared->file = Descriptor();
      shared->ended = true;
      shared->changed.notify_all();
    });
  }

  /// Closes the descriptor and joins the thread. Leaves the thread behind where it hangs.
  void end() noexcept {
    if (!thread_.joinable()) {
      shared_->file = Descriptor();
      return;
    }
    std::unique_lock lock(shared_->mutex);
    shared_->told_to_end = true;
    shared_->changed.notify_all();
    const bool ended =
        shared_->changed.wait_for(lock, kForTheBeat, [this] { return shared_->ended; });
    lock.unlock();
    if (ended) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

 private:
  static constexpr milliseconds kForTheBeat{1'000};
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool told_to_end = false, ended = false;
    Descriptor file;
  };
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
};

}  // namespace

class FolderLock::Impl {
 public:
  Impl(std::string key, std::string folder, const LockTimes& times, bool disk_knows_locks)
      : key_(std::move(key)),
        folder_(std::move(folder)),
        path_(folder_ + "/" + kLockFile),
        times_(times),
        knows_locks_(disk_knows_locks) {
    try {
      take();
      beat_.start(file_, times_.beat);
    } catch (...) {
      release();
      throw;
    }
  }

  ~Impl() { release(); }

  const std::string& folder() const { return folder_; }

  void release() noexcept {
    const std::lock_guard lock(mutex_);
    if (std::exchange(released_, true)) return;
    // First, since an open file keeps a file of a network disk, and with it the folder.
    beat_.end();
    if (file_ >= 0) {
      // Removes the name before the lock, so that the next holder of a lock on this file sees that
      // the name is gone.
      if (is_at(file_, path_)) ::unlink(path_.c_str());
      static_cast<void>(::flock(file_, LOCK_UN));
      file_ = Descriptor();
    }
    remove_made();
  }

 private:
  void take() {
    for (int tries = 0;;) {
      make_folder();
      // Creates a file on trial. Fails with the disk's own error where it is full or read-only.
      const std::string trial = folder_ + "/" + temporary_name("lock");
      const Descriptor file(::open(trial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      const int error = file < 0 ? errno : 0;
      if (error == ENOENT && ++tries < kTries) continue;
      if (error != 0) fail(error);
      ::unlink(trial.c_str());
      if (::flock(file, LOCK_EX | LOCK_NB) != 0 && knows_no_locks(errno)) knows_locks_ = false;
      break;
    }
    start_ = Clock::now();
    while (!(knows_locks_ ? take_by_lock() : take_by_record())) {
      if (Clock::now() - start_ > 2 * kForTheDead + times_.watch) busy(key_, folder_, std::nullopt);
      std::this_thread::sleep_for(kBetweenTries);
    }
  }

  /// Takes the lock by flock. Returns false to try again.
  bool take_by_lock() {
    make_folder();
    Descriptor file = open_lock(path_, O_RDWR | O_CREAT);
    if (file < 0 && errno == EACCES) file = open_lock(path_, O_RDONLY);  // another user's file
    if (file < 0 && errno == ENOENT) return false;
    require_file(file);
    const std::optional<LockOwner> owner = lock_owner_from(content_of(file));
    if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) return false;
      if (errno != EWOULDBLOCK) fail(errno);
      const bool dead = owner && is_gone(owner->process);
      if (Clock::now() - start_ > (dead ? kForTheDead : times_.patience)) {
        busy(key_, folder_, owner);
      }
      return false;
    }
    // The last owner may have removed the file meanwhile.
    if (!is_at(file, path_)) return false;
    if (owner && may_live(*owner, folder_, times_, true)) busy(key_, folder_, owner);
    if ((::fcntl(file, F_GETFL) & O_ACCMODE) == O_RDONLY) {
      ::unlink(path_.c_str());  // a writable file of this user replaces it
      return false;
    }
    file_ = std::move(file);
    write_record();
    return true;
  }

  /// Takes the lock on a disk without locks: the process that creates the file holds it. A file
  /// whose owner is gone is renamed first, which only one process can do.
  bool take_by_record() {
    make_folder();
    Descriptor own = open_lock(path_, O_RDWR | O_CREAT | O_EXCL);
    if (own >= 0) {
      file_ = std::move(own);
      write_record();
      return true;
    }
    if (errno != EEXIST && errno != ENOENT) fail(errno);
    const Descriptor seen = open_lock(path_, O_RDONLY);
    if (seen < 0 && errno == ENOENT) return false;
    require_file(seen);
    const std::optional<LockOwner> owner = lock_owner_from(content_of(seen));
    if (owner ? may_live(*owner, folder_, times_, false) : !is_silent()) {
      // A file without an owner is new and about to be written.
      if (!owner && Clock::now() - start_ < times_.patience) return false;
      busy(key_, folder_, owner);
    }
    const std::string old = folder_ + "/" + temporary_name("old-lock");
    if (::rename(path_.c_str(), old.c_str()) != 0) return false;
    // Another process took the lock over meanwhile. Gives its file the name back.
    if (!is_at(seen, old)) static_cast<void>(::link(old.c_str(), path_.c_str()));
    ::unlink(old.c_str());
    return false;
  }

  /// Throws UserError unless `file`, opened as the lock file, is a regular file.
  void require_file(const Descriptor& file) const {
    struct stat status{};
    if (file < 0 && errno != ELOOP && errno != ENXIO && errno != EISDIR) fail(errno);
    if (file >= 0 && ::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) return;
    throw UserError(fmt::format(
        "{} is not a file that a run has written. Move it elsewhere: a run keeps others out of the "
        "folder by a file of that name.",
        path_));
  }

  bool is_silent() const {
    const std::optional<milliseconds> now = now_in(folder_), touched = touched_at(path_);
    return now && touched && *now - *touched > times_.silence;
  }

  /// On a full disk the record stays empty. The lock holds all the same.
  void write_record() {
    const std::string text = text_of(new_lock_owner());
    static_cast<void>(::ftruncate(file_, 0) == 0 &&
                      ::pwrite(file_, text.data(), text.size(), 0) > 0);
  }

  void make_folder() {
    std::error_code error;
    fs::path path = fs::absolute(folder_, error).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    std::vector<fs::path> missing;
    while (path.has_relative_path() && !fs::exists(fs::symlink_status(path, error))) {
      missing.push_back(path);
      path = path.parent_path();
    }
    fs::create_directories(folder_, error);
    if (error) fail(error.value());
    if (missing.size() > made_.size()) made_ = missing;
  }

  /// Removes the folders that were made, from the innermost up, where they are empty.
  void remove_made() noexcept {
    for (const fs::path& path : made_) {
      if (::rmdir(path.c_str()) != 0) return;
    }
  }

  [[noreturn]] void fail(int error) const {
    throw_disk_error(error, fmt::format("Cannot write {}: {}. {}", path_, std::strerror(error),
                                        remedy_for(error)));
  }

  const std::string key_, folder_, path_;
  const LockTimes times_;
  bool knows_locks_;
  Clock::time_point start_;
  std::vector<fs::path> made_;
  Descriptor file_;
  std::mutex mutex_;
  bool released_ = false;
  FolderBeat beat_;
};

FolderLock::FolderLock(const std::string& key, const std::string& folder, const LockTimes& times,
                       bool disk_knows_locks)
    : impl_(std::make_unique<Impl>(key, folder, times, disk_knows_locks)) {}
FolderLock::~FolderLock() = default;
const std::string& FolderLock::folder() const { return impl_->folder(); }
void FolderLock::release() noexcept { impl_->release(); }

void require_not_locked(const std::string& key, const std::string& folder, const LockTimes& times) {
  const std::string path = folder + "/" + kLockFile;
  const Clock::time_point start = Clock::now();
  for (;;) {
    const Descriptor file = open_lock(path, O_RDONLY);
    struct stat status{};
    if (file < 0 || ::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return;
    const std::optional<LockOwner> owner = lock_owner_from(content_of(file));
    if (::flock(file, LOCK_SH | LOCK_NB) == 0) return;
    if (errno == EINTR) continue;
    if (knows_no_locks(errno)) {
      if (owner && may_live(*owner, folder, times, false)) busy(key, folder, owner);
      return;
    }
    if (errno != EWOULDBLOCK) return;
    // An owner that is ending is no reason to refuse, since the process that takes the lock waits
    // for it.
    if (owner && is_gone(owner->process)) return;
    if (Clock::now() - start > times.patience) busy(key, folder, owner);
    std::this_thread::sleep_for(kBetweenTries);
  }
}

}  // namespace longspan
