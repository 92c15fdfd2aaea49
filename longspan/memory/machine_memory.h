// How much memory this machine has at all, so that no run begins that it cannot hold. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

/// The most that a process can have, and what says so.
struct MachineMemory {
  int64_t bytes = INT64_MAX;  // where nothing is known
  std::string limit;          // "memory and swap space", "the limit of its control group", ...

  /// "this machine has 62.8 GB (memory and swap space)".
  std::string text() const;
};

/// Physical memory and what is swapped to, or the limit of this process's control group (version 1
/// or 2) or of its address space (ulimit -v), whichever is least. `root` stands for / in tests.
MachineMemory machine_memory(const std::string& root = "");

}  // namespace longspan
