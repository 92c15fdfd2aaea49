// Which process wrote something, and whether it is still there. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

/// A process, told from all others: also from one that has its number later.
struct ProcessIdentity {
  std::string host;
  std::string machine;  // the same for processes that see each other in /proc; empty: unknown
  int64_t process = 0;
  int64_t started = 0;  // in the clock ticks of /proc, since the machine's start; 0: unknown
  bool operator==(const ProcessIdentity&) const = default;
};

ProcessIdentity own_process();

/// Is it one of those that this process sees in /proc? No where either's machine is unknown.
bool is_here(const ProcessIdentity& process);

/// Has it ended? True only for a process of this machine, and only where the system says so. What
/// cannot be found out (no permission, no descriptor left) is no sign of an end.
bool is_gone(const ProcessIdentity& process);

}  // namespace longspan
