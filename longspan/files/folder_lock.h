// A lock that gives a folder one writer at a time. No torch.
//
// The lock is a file, kLockFile, which the writing process locks (flock). The system releases the
// lock when the process ends for any reason. The file names the owner. On disks without locks, the
// file itself is the lock: the lock is valid while the owner runs and touches the file every few
// seconds.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "longspan/base/user_error.h"

namespace longspan {

inline constexpr const char* kLockFile = ".longspan-lock";

/// Thrown where another process writes into the folder.
class FolderBusyError : public UserError {
 public:
  using UserError::UserError;
};

struct LockTimes {
  /// How often the holder touches the file.
  std::chrono::milliseconds beat{2'000};
  /// Some disks lock within one machine only. If the lock is free and the file names another
  /// machine's process, the file is watched for this time, and the lock is taken over if nothing
  /// touches the file.
  std::chrono::milliseconds watch{10'000};
  /// On disks without locks: how long a file of another machine's process must be untouched before
  /// the lock is taken over.
  std::chrono::milliseconds silence{120'000};
  /// How long to retry: another process may be checking the lock, or ending.
  std::chrono::milliseconds patience{1'000};
};

/// Holds the folder's lock for its lifetime. Threads of one process exclude each other like
/// processes.
class FolderLock {
 public:
  /// Creates the folder where it is missing. `key` is the user's name for the folder
  /// ("output_dir"). Throws FolderBusyError (with the owner's host, process and start), and as
  /// throw_disk_error where the folder cannot hold the file. `disk_knows_locks`: false in tests of
  /// disks without locks.
  FolderLock(const std::string& key, const std::string& folder, const LockTimes& times = {},
             bool disk_knows_locks = true);
  /// Removes the file, and the folders that the constructor made, if they are empty.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  const std::string& folder() const;
  /// Does the destructor's work early. Any thread may call release(), for example when the process
  /// is about to end.
  void release() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Throws FolderBusyError where another process holds the folder now. Leaves nothing behind. A
/// folder without the file is free.
void require_not_locked(const std::string& key, const std::string& folder,
                        const LockTimes& times = {});

}  // namespace longspan
