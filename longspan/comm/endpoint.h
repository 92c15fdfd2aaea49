// Addresses and ports, looked at before anything depends on them. No torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>

struct sockaddr_storage;

namespace longspan {

/// "node7:29500", "[::1]:29500".
std::string endpoint_text(const std::string& host, int64_t port);

/// An IPv6 address without the brackets that it may be given in.
std::string bare_host(const std::string& host);

/// Throws UserError unless the port is one, 1 to 65535. `name` is where it was given.
int require_port(const std::string& name, int64_t port);

/// Why this machine cannot listen at the port ("another program listens there"); empty: it can.
std::string why_not_free(int port);

/// Why the name has no address ("Name or service not known"); empty: it has. Asking a server of
/// names ends after `patience`.
std::string why_no_address(const std::string& host, std::chrono::milliseconds patience);

/// The host's addresses, as address_text has them; none where none can be found out in time.
std::set<std::string> addresses_of(const std::string& host, std::chrono::milliseconds patience);

/// "127.0.0.1", also where IPv6 carries it (::ffff:127.0.0.1); "::1", without a port or an
/// interface. Empty for an address of another kind.
std::string address_text(const sockaddr_storage& address);

/// Does the host have an address of this machine? Of a name without an address it is not known, and
/// so taken for true.
bool is_this_machine(const std::string& host, std::chrono::milliseconds patience);

/// What comes of connecting to a port.
enum class Listener {
  kTakes,    // somebody takes the connection
  kRefuses,  // the machine answers that nobody listens
  kSilent,   // there is no way to the machine, or no answer, or no address
  kUnknown   // this process could not even try: it has no descriptor left
};
/// Connects to one address of the host after the other, and lets go. Ends after `patience`.
Listener who_listens(const std::string& host, int port, std::chrono::milliseconds patience);

}  // namespace longspan
