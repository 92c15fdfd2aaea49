// Total memory of this machine, to refuse runs that cannot fit. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

/// The most memory that a process can have, and the limit that sets it.
struct MachineMemory {
  int64_t bytes = INT64_MAX;  // default: unknown
  std::string limit;          // "memory and swap space", "the limit of its control group", ...

  /// For example "this machine has 62.8 GB (memory and swap space)".
  std::string text() const;
};

/// Returns the least of: physical memory plus swap, the limit of this process's control group
/// (cgroups version 1 or 2), and the process's address space limit (ulimit -v). `root` replaces /
/// in tests.
MachineMemory machine_memory(const std::string& root = "");

}  // namespace longspan
