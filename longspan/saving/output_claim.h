// A run's hold on the folders that it writes into.
#pragma once

#include <memory>
#include <vector>

#include "longspan/checkpoint/folder_lock.h"
#include "longspan/config/config.h"
#include "longspan/liveness/unfinished.h"

namespace longspan {

/// Keeps other runs out of output_folders until it dies or the process ends, and leaves no file
/// behind then. On rank 0.
class OutputClaim {
 public:
  /// First finishes what a killed run was about to put in its place. Then throws what
  /// check_output_dir (unless `is_restart`) and try_output_dirs throw. Throws FolderBusyError where
  /// another run writes.
  OutputClaim(const Config& config, bool is_restart);

 private:
  std::vector<std::unique_ptr<FolderLock>> locks_;
  EndAtOnce at_end_;
};

/// Throws as OutputClaim does, and claims nothing: for processes that check the folders ahead of
/// the run.
void check_output_folders(const Config& config);

}  // namespace longspan
