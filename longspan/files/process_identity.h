// The identity of a process, and whether it still runs. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

/// Identifies a process, also against a later process with the same number.
struct ProcessIdentity {
  std::string host;
  std::string machine;  // the same for processes that share a /proc; empty: unknown
  int64_t process = 0;
  int64_t started = 0;  // in clock ticks of /proc since boot; 0: unknown
  bool operator==(const ProcessIdentity&) const = default;
};

std::string own_host();
/// Returns a name that is the same for processes that see each other in /proc; "" if unknown.
std::string own_machine();
ProcessIdentity own_process();

/// Whether the calling process sees `process` in /proc. False where the machine of either process
/// is unknown.
bool is_here(const ProcessIdentity& process);

/// Whether `process` has ended. True only for a process of this machine whose end the system
/// confirms. False where the system cannot tell (no permission, no free descriptor).
bool is_gone(const ProcessIdentity& process);

}  // namespace longspan
