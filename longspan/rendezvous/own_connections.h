// Finds and ends connections of this process that a library hides. No torch.
#pragma once

#include <set>
#include <string>

namespace longspan {

/// Connections, each identified by the addresses of its two ends.
using Connections = std::set<std::string>;

/// Returns this process's connections to this port at one of the addresses (address_text) in which
/// a thread may wait for bytes without a time limit. Empty where the system does not list them
/// (/proc).
Connections connections_to(const std::set<std::string>& addresses, int port);

/// Shuts down those that are still open: a thread that waits in one gets an error. Thread-safe.
void shut_down(const Connections& connections);

}  // namespace longspan
