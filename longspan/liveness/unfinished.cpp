#include "longspan/liveness/unfinished.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/written_names.h"

namespace longspan {
namespace {

std::timed_mutex short_writes;
std::mutex temporary_folders_mutex;

/// Never destroyed: the process may be told to end at once while static destructors run.
std::set<std::string>& temporary_folders() {
  static auto& folders = *new std::set<std::string>;
  return folders;
}

std::set<const EndAtOnce*>& actions_at_end() {
  static auto& actions = *new std::set<const EndAtOnce*>;
  return actions;
}

/// Signals that the cleanup has removed the folders and run the actions. Never destroyed.
struct Tidying {
  std::promise<void> folders, actions;
};

void tidy_up(Tidying& tidying) {
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code ignored;
  // Twice, because another thread may write into the folder until the process is gone.
  for (int i = 0; i < 2; ++i) {
    for (const std::string& folder : temporary_folders()) {
      std::filesystem::remove_all(folder, ignored);
    }
  }
  tidying.folders.set_value();
  for (const EndAtOnce* action : actions_at_end()) action->run();
  tidying.actions.set_value();
  // Never returns and keeps the lock, so that no thread makes another folder.
  for (;;) pause();
}

}  // namespace

void finish_before_the_end() {
  // One second is enough for a log line, a few renames or the actions; three are enough to remove
  // gigabytes. A hung file system must not block the end.
  using std::chrono::seconds;
  const bool locked = short_writes.try_lock_for(seconds(1));
  static_cast<void>(locked);
  auto& tidying = *new Tidying;
  try {
    std::thread([&tidying] { tidy_up(tidying); }).detach();
    tidying.folders.get_future().wait_for(seconds(3));
    tidying.actions.get_future().wait_for(seconds(1));
  } catch (const std::system_error&) {
    // No thread can be started. A later run removes the folders.
  }
}

TemporaryFolder::TemporaryFolder(std::string path) : path_(std::move(path)) {
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code error;
  remove_own_folder(path_);
  std::filesystem::create_directories(path_, error);
  if (error) {
    throw_disk_error(error.value(), fmt::format("{}: the folder cannot be made ({}). {}", path_,
                                                error.message(), remedy_for(error.value())));
  }
  temporary_folders().insert(path_);
}

TemporaryFolder::~TemporaryFolder() {
  const std::lock_guard lock(temporary_folders_mutex);
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  temporary_folders().erase(path_);
}

EndAtOnce::EndAtOnce(std::function<void()> action) : action_(std::move(action)) {
  const std::lock_guard lock(temporary_folders_mutex);
  actions_at_end().insert(this);
}

EndAtOnce::~EndAtOnce() {
  const std::lock_guard lock(temporary_folders_mutex);
  actions_at_end().erase(this);
}

void EndAtOnce::change(const std::function<void()>& what) const {
  const std::lock_guard lock(temporary_folders_mutex);
  what();
}

UninterruptedScope::UninterruptedScope() { short_writes.lock(); }
UninterruptedScope::~UninterruptedScope() { short_writes.unlock(); }

}  // namespace longspan
