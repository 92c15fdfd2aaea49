// A run's hold on the folders that it writes into.
#pragma once

#include <memory>
#include <vector>

#include "longspan/checkpoint/folder_lock.h"
#include "longspan/config/config.h"
#include "longspan/train/interrupt.h"

namespace longspan {

/// Keeps other runs out of output_folders until it dies or the process ends, and leaves no file
/// behind then. On rank 0.
class OutputClaim {
 public:
  /// What a run that was killed was about to put in its place is put there first; then what
  /// check_output_dir (unless `is_restart`) and try_output_dirs say is thrown. Throws
  /// FolderBusyError where another run writes.
  OutputClaim(const Config& config, bool is_restart);

 private:
  std::vector<std::unique_ptr<FolderLock>> locks_;
  EndAtOnce at_end_;
};

/// Throws as OutputClaim does, and leaves the folders to whoever comes next: for processes that
/// look ahead of the run.
void check_output_folders(const Config& config);

}  // namespace longspan
