// Connections of this process that a library has made and shows to nobody. No torch.
#pragma once

#include <set>
#include <string>

namespace longspan {

/// Connections, each by the addresses of its two ends.
using Connections = std::set<std::string>;

/// Those of this process to this port of a machine that has one of the addresses (address_text), in
/// which a thread may wait for bytes for as long as the other end is silent. None where the system
/// does not list them (/proc).
Connections connections_to(const std::set<std::string>& addresses, int port);

/// Ends those that are still open: a thread that waits in one gets an error. From any thread.
void shut_down(const Connections& connections);

}  // namespace longspan
