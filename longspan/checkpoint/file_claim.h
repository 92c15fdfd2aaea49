// Keeps one run from removing what another one reads. No torch.
#pragma once

#include <string>

#include "longspan/checkpoint/descriptor.h"

namespace longspan {

/// While this object lives, this process reads the file, or is about to remove it with what it
/// stands for. A reader keeps others from removing it, as far as the disk knows locks (flock).
/// Claims nothing where the file cannot be opened.
class FileClaim {
 public:
  enum class Kind { kRead, kRemove };
  FileClaim(const std::string& path, Kind kind);
  /// Another claim excludes this one.
  bool refused() const { return refused_; }

 private:
  Descriptor file_;
  bool refused_ = false;
};

}  // namespace longspan
