// What one run reads another one does not remove. No torch.
#pragma once

#include <string>

#include "longspan/checkpoint/descriptor.h"

namespace longspan {

/// While one lives, this process reads the file, or means to remove it with what it stands for: a
/// reader keeps others from that, as far as the disk knows locks (flock). Nothing is claimed where
/// the file cannot be opened.
class FileClaim {
 public:
  enum class Kind { kRead, kRemove };
  FileClaim(const std::string& path, Kind kind);
  /// Another claim does not go with this one.
  bool refused() const { return refused_; }

 private:
  Descriptor file_;
  bool refused_ = false;
};

}  // namespace longspan
