// A run's claim on the folders that it writes into.
#pragma once

#include <memory>
#include <vector>

#include "longspan/checkpoint/folder_lock.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/saving/saving.h"

namespace longspan {

/// On rank 0. Keeps other runs out of output_folders until this object dies or the process ends.
/// Then it leaves no file behind.
class OutputClaim {
 public:
  /// First finishes the moves of files that a killed run had begun. Then throws what
  /// check_output_dir (unless `is_restart`) and try_output_dirs throw. Throws FolderBusyError where
  /// another run writes.
  OutputClaim(const OutputSettings& config, const std::vector<SourceFolder>& sources,
              bool is_restart);

 private:
  std::vector<std::unique_ptr<FolderLock>> locks_;
  EndAtOnce at_end_;
};

/// Throws as OutputClaim does, and claims nothing: for processes that check the folders ahead of
/// the run.
void check_output_folders(const OutputSettings& config, const std::vector<SourceFolder>& sources);

}  // namespace longspan
