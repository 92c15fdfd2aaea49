// A run's exclusive claim on its output folders.
#pragma once

#include <memory>
#include <vector>

#include "longspan/files/folder_lock.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/saving/saving.h"

namespace longspan {

/// On rank 0: keeps other runs out of output_folders until this object is destroyed or the process
/// ends. Leaves no file behind.
class OutputClaim {
 public:
  /// First completes file moves that a killed run had begun. Then checks the folders by
  /// check_output_dir (unless `is_restart`) and try_output_dirs, and throws their errors. Throws
  /// FolderBusyError if another run writes into one of the folders.
  OutputClaim(const OutputSettings& config, const std::vector<SourceFolder>& sources,
              bool is_restart);

 private:
  std::vector<std::unique_ptr<FolderLock>> locks_;
  EndAtOnce at_end_;
};

/// Like OutputClaim's constructor, without a claim: for processes that check the folders before the
/// run.
void check_output_folders(const OutputSettings& config, const std::vector<SourceFolder>& sources);

}  // namespace longspan
