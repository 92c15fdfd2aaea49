// Finds and ends this process's TCP connections whose descriptors a library does not expose. No
// torch.
#pragma once

#include <set>
#include <string>

namespace longspan {

/// Connections, each identified by the addresses of its two ends.
using Connections = std::set<std::string>;

/// Returns this process's connections to `port` at one of `addresses` (as address_text()),
/// restricted to blocking sockets, in which a thread may wait without a time limit. Empty if the
/// system does not list connections (/proc).
Connections connections_to(const std::set<std::string>& addresses, int port);

/// Shuts down the connections that are still open. A thread that waits for bytes in such a
/// connection gets an error. Thread-safe.
void shut_down(const Connections& connections);

}  // namespace longspan
