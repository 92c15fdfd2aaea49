// Work that a process completes, and folders that it removes, before it ends at once. No torch.
#pragma once

#include <functional>
#include <string>

namespace longspan {

/// A folder that is removed when the object is destroyed or when the process ends at once.
class TemporaryFolder {
 public:
  /// Creates `path` as an empty folder and removes the leftovers of an earlier run. Throws
  /// UserError if the folder cannot be made or `path` holds anything that the program has not
  /// written (remove_own_folder).
  explicit TemporaryFolder(std::string path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Registers `action` to run when the process ends at once, for the lifetime of this object. The
/// action must be short and must not throw.
class EndAtOnce {
 public:
  explicit EndAtOnce(std::function<void()> action);
  ~EndAtOnce();
  EndAtOnce(const EndAtOnce&) = delete;
  EndAtOnce& operator=(const EndAtOnce&) = delete;
  /// Calls `what`, which may modify data that the action reads. The action does not run meanwhile.
  void change(const std::function<void()>& what) const;
  void run() const { action_(); }

 private:
  std::function<void()> action_;
};

/// Delays the end of the process for the lifetime of this object. For short writes or renames that
/// belong together.
class UninterruptedScope {
 public:
  UninterruptedScope();
  ~UninterruptedScope();
  UninterruptedScope(const UninterruptedScope&) = delete;
  UninterruptedScope& operator=(const UninterruptedScope&) = delete;
};

/// For programs that end their process without running destructors, right before the end. Waits for
/// short writes in progress, removes temporary folders and runs the actions of EndAtOnce. Waits a
/// few seconds at most for each, so that a hung disk does not keep the process alive.
void finish_before_the_end();

}  // namespace longspan
