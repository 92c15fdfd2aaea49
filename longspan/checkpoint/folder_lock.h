// One writer at a time in a folder. No torch.
//
// The lock is a file, kLockFile, that the system has locked for the process that writes there
// (flock): when the process ends, however it does, the lock is gone with it. The file says who
// holds it. Where a disk knows no locks, what the file says is the lock: it holds as long as its
// process, which touches it every few seconds.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "longspan/config/user_error.h"

namespace longspan {

inline constexpr const char* kLockFile = ".longspan-lock";

/// Another process writes into the folder.
class FolderBusyError : public UserError {
 public:
  using UserError::UserError;
};

struct LockTimes {
  /// How often the holder touches the file.
  std::chrono::milliseconds beat{2'000};
  /// How long a file of another machine's process is watched when its lock is free, since some
  /// disks lock for each machine alone. It is taken over when nobody touches it.
  std::chrono::milliseconds watch{10'000};
  /// Where a disk knows no locks: after how long untouched a file of another machine's process is
  /// taken over.
  std::chrono::milliseconds silence{120'000};
  /// How long a lock is asked for again: another process may be checking it, or ending.
  std::chrono::milliseconds patience{1'000};
};

/// Holds the folder until it dies. Threads of one process exclude each other as processes do.
class FolderLock {
 public:
  /// Makes the folder where it is missing. `key` names it to the user ("output_dir"). Throws
  /// FolderBusyError (the owner's host, process, since when), and as throw_disk_error when the
  /// folder cannot hold the file. `disk_knows_locks`: false for tests of disks that do not.
  FolderLock(const std::string& key, const std::string& folder, const LockTimes& times = {},
             bool disk_knows_locks = true);
  /// Removes the file, and the folders that were made for it if they are empty.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& folder() const;
  /// What the destructor does, also from another thread, when the process is about to end.
  void release() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Throws FolderBusyError when another process holds the folder now. Leaves nothing behind; a
/// folder without the file is free.
void require_not_locked(const std::string& key, const std::string& folder,
                        const LockTimes& times = {});

}  // namespace longspan
