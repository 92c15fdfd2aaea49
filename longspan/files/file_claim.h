// A claim on a file, which keeps one run from removing a file that another run reads. No torch.
#pragma once

#include <string>

#include "longspan/files/descriptor.h"

namespace longspan {

/// The claim says that, while the object lives, this process reads the file, or is about to remove
/// the file's folder. A reader's claim keeps other processes from removing the file, where the disk
/// supports locks (flock). Has no effect where the file cannot be opened.
class FileClaim {
 public:
  enum class Kind { kRead, kRemove };
  FileClaim(const std::string& path, Kind kind);
  /// Whether another process's claim excludes this claim.
  bool refused() const { return refused_; }

 private:
  Descriptor file_;
  bool refused_ = false;
};

}  // namespace longspan
