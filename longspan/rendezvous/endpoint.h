// Checks of addresses and ports. No torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>

struct sockaddr_storage;

namespace longspan {

/// Returns "node7:29500", or "[::1]:29500" for an IPv6 address.
std::string endpoint_text(const std::string& host, int64_t port);

/// Returns the host without the brackets of an IPv6 address.
std::string bare_host(const std::string& host);

/// Returns the port. Throws UserError unless the port is in 1 to 65535. `name`: the setting that
/// gave the port.
int require_port(const std::string& name, int64_t port);

/// Returns why this machine cannot listen at the port ("another program listens there"); "" where
/// it can.
std::string why_not_free(int port);

/// Returns why the name has no address ("Name or service not known"); "" where it has an address.
/// Gives up on a DNS query after `patience`.
std::string why_no_address(const std::string& host, std::chrono::milliseconds patience);

/// Returns the host's addresses in the form of address_text(); empty where no address is found in
/// time.
std::set<std::string> addresses_of(const std::string& host, std::chrono::milliseconds patience);

/// Returns "127.0.0.1" (also for ::ffff:127.0.0.1) or "::1", without port and interface. Returns ""
/// for other kinds of addresses.
std::string address_text(const sockaddr_storage& address);

/// Whether the host has an address of this machine. True for a name without an address.
bool is_this_machine(const std::string& host, std::chrono::milliseconds patience);

/// The result of connecting to a port.
enum class Listener {
  kTakes,    // accepts the connection
  kRefuses,  // the machine answers that no process listens
  kSilent,   // no route, no answer, or no address
  kUnknown   // this process has no free descriptor for a connection
};
/// Connects to one address of the host after the other, and disconnects. Ends after `patience`.
Listener who_listens(const std::string& host, int port, std::chrono::milliseconds patience);

}  // namespace longspan
