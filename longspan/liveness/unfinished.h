// What a process finishes and what it removes before it ends at once. No torch.
#pragma once

#include <functional>
#include <string>

namespace longspan {

/// A folder that is removed when the object dies, or when the process ends at once.
class TemporaryFolder {
 public:
  /// Creates `path` as an empty folder and removes what an earlier run has left there. Throws
  /// UserError, as remove_own_folder does where something else is there.
  explicit TemporaryFolder(std::string path);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// While this object lives, `action` runs when the process ends at once. It must be short and throw
/// nothing.
class EndAtOnce {
 public:
  explicit EndAtOnce(std::function<void()> action);
  ~EndAtOnce();
  EndAtOnce(const EndAtOnce&) = delete;
  EndAtOnce& operator=(const EndAtOnce&) = delete;
  /// Calls `what`, which may change what the action reads; the action does not run meanwhile.
  void change(const std::function<void()>& what) const;
  void run() const { action_(); }

 private:
  std::function<void()> action_;
};

/// While this object lives, the process does not end at once: for short writes or renames that
/// belong together.
class UninterruptedScope {
 public:
  UninterruptedScope();
  ~UninterruptedScope();
  UninterruptedScope(const UninterruptedScope&) = delete;
  UninterruptedScope& operator=(const UninterruptedScope&) = delete;
};

/// For a program that ends its process after this call, without running destructors: waits for
/// short writes that are under way, removes temporary folders and runs actions (EndAtOnce). It
/// waits some seconds at most for each, so that a disk that hangs keeps no process alive.
void finish_before_the_end();

}  // namespace longspan
