#include "longspan/saving/output_claim.h"

#include <filesystem>
#include <string>

#include "longspan/saving/checkpoints.h"
#include "longspan/saving/output_folders.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/saving.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

const char* key_of(const std::string& folder, const OutputSettings& config) {
  return folder == config.output_dir ? "output_dir" : "fallback_output_dir";
}

}  // namespace

OutputClaim::OutputClaim(const OutputSettings& config, const std::vector<SourceFolder>& sources,
                         bool is_restart)
    : at_end_([this] {
        for (const auto& lock : locks_) lock->release();
      }) {
  const std::vector<std::string> folders =
      config.output_dir.empty() ? std::vector<std::string>{} : output_folders(config);
  const auto holds = [&](const std::string& folder) {
    for (const auto& lock : locks_) {
      if (lock->folder() == folder) return true;
    }
    return false;
  };
  const auto take = [&](const std::string& folder) {
    auto lock = std::make_unique<FolderLock>(key_of(folder, config), folder);
    at_end_.change([&] { locks_.push_back(std::move(lock)); });
  };
  for (const std::string& folder : folders) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) continue;
    try {
      take(folder);
    } catch (const FolderBusyError&) {
      throw;
    } catch (const UserError&) {
      // The folder is not writable. The checks below explain this better; if they pass, the lock is
      // tried again.
    }
  }
  for (const auto& lock : locks_) {
    put_back_replaced(lock->folder());
    finish_saved_model(lock->folder());
  }
  if (!is_restart) check_output_dir(config, sources);
  try_output_dirs(config, sources);
  for (const std::string& folder : folders) {
    if (!holds(folder)) take(folder);
  }
}

void check_output_folders(const OutputSettings& config, const std::vector<SourceFolder>& sources) {
  if (!config.output_dir.empty()) {
    for (const std::string& folder : output_folders(config)) {
      require_not_locked(key_of(folder, config), folder);
      put_back_replaced(folder);
    }
  }
  check_output_dir(config, sources);
  try_output_dirs(config, sources);
}

}  // namespace longspan
