#include "longspan/rendezvous/own_connections.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "longspan/rendezvous/endpoint.h"

namespace longspan {
namespace {

struct Ends {
  std::string text;  // bytes of both addresses
  std::string peer_address;
  int peer_port = 0;
};

/// Returns nullopt for a descriptor that is no connection, or one in which no thread waits for
/// bytes.
std::optional<Ends> ends_of(int descriptor) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0 ||
      getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &own_length) != 0) {
    return std::nullopt;
  }
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) != 0) return std::nullopt;
  Ends ends;
  if (peer.ss_family == AF_INET) {
    ends.peer_port = ntohs(reinterpret_cast<const sockaddr_in*>(&peer)->sin_port);
  } else if (peer.ss_family == AF_INET6) {
    ends.peer_port = ntohs(reinterpret_cast<const sockaddr_in6*>(&peer)->sin6_port);
  } else {
    return std::nullopt;
  }
  ends.peer_address = address_text(peer);
  ends.text.assign(reinterpret_cast<const char*>(&own), own_length);
  ends.text.append(reinterpret_cast<const char*>(&peer), peer_length);
  return ends;
}

std::vector<int> descriptors() {
  std::vector<int> all;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename();
    int number = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), number).ec == std::errc()) {
      all.push_back(number);
    }
  }
  return all;
}

}  // namespace

Connections connections_to(const std::set<std::string>& addresses, int port) {
  Connections found;
  for (const int descriptor : descriptors()) {
    const std::optional<Ends> ends = ends_of(descriptor);
    if (ends && ends->peer_port == port && addresses.contains(ends->peer_address)) {
      found.insert(ends->text);
    }
  }
  return found;
}

void shut_down(const Connections& connections) {
  if (connections.empty()) return;
  for (const int descriptor : descriptors()) {
    if (!ends_of(descriptor)) continue;
    // The descriptor's number may belong to another file by now. The copy's number belongs to this
    // function.
    const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) continue;
    const std::optional<Ends> ends = ends_of(copy);
    if (ends && connections.contains(ends->text)) shutdown(copy, SHUT_RDWR);
    close(copy);
  }
}

}  // namespace longspan
