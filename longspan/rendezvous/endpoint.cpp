#include "longspan/rendezvous/endpoint.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/rendezvous/within.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kLastPort = 65535;

/// A socket that the object closes.
class Socket {
 public:
  Socket(int family, int flags)
      : descriptor_(socket(family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

struct Addresses {
  std::vector<Address> all;
  std::string problem;  // why there is none
};

Addresses look_up(const std::string& host, int flags = 0) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) return {{}, error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error)};
  Addresses addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address address{.length = at->ai_addrlen};
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    addresses.all.push_back(address);
  }
  freeaddrinfo(found);
  if (addresses.all.empty()) addresses.problem = "it has no address";
  return addresses;
}

Addresses look_up_within(const std::string& host, milliseconds patience) {
  // A numeric address needs no DNS query, and so no thread.
  if (Addresses written = look_up(host, AI_NUMERICHOST); !written.all.empty()) return written;
  std::optional<Addresses> found = within<Addresses>(patience, [host] { return look_up(host); });
  if (found) return *std::move(found);
  return {{}, "the server of names does not answer"};
}

void set_port(Address& address, int port) {
  const in_port_t number = htons(static_cast<uint16_t>(port));
  if (address.storage.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = number;
  } else if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = number;
  }
}

Listener try_address(const Address& address, Clock::time_point end) {
  const Socket socket(address.storage.ss_family, SOCK_NONBLOCK);
  if (socket.get() < 0) return errno == EAFNOSUPPORT ? Listener::kSilent : Listener::kUnknown;
  if (connect(socket.get(), address.get(), address.length) == 0) return Listener::kTakes;
  if (errno == ECONNREFUSED) return Listener::kRefuses;
  if (errno != EINPROGRESS) return Listener::kSilent;
  pollfd waits{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  int ready = 0;
  do {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now()).count();
    ready = poll(&waits, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
  } while (ready < 0 && errno == EINTR);
  int error = 0;
  socklen_t length = sizeof(error);
  if (ready <= 0 || getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
    return Listener::kSilent;
  }
  if (error == 0) return Listener::kTakes;
  return error == ECONNREFUSED ? Listener::kRefuses : Listener::kSilent;
}

/// Returns 0, or the error of binding and listening at the port at all addresses of this machine. A
/// listener at the port makes it fail. Accepts no connection.
int try_to_take(int family, int port) {
  const Socket socket(family, 0);
  if (socket.get() < 0) return errno;
  const int yes = 1, no = 0;
  // Leftovers of an earlier server do not count as another program.
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  Address address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (family == AF_INET6) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  set_port(address, port);
  return bind(socket.get(), address.get(), address.length) == 0 ? 0 : errno;
}

}  // namespace

std::string endpoint_text(const std::string& host, int64_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

std::string bare_host(const std::string& host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
}

int require_port(const std::string& name, int64_t port) {
  if (port >= 1 && port <= kLastPort) return static_cast<int>(port);
  throw UserError(
      fmt::format("{}={} is no port: ports are numbered from 1 to {}.", name, port, kLastPort));
}

std::string why_not_free(int port) {
  // As torch does: IPv6 and IPv4 together, else IPv4 alone.
  if (try_to_take(AF_INET6, port) == 0) return "";
  switch (const int error = try_to_take(AF_INET, port)) {
    case 0:
      return "";
    case EADDRINUSE:
      return "another program listens there, perhaps another run";
    case EACCES:
      return "the system keeps it for programs with more rights (Permission denied)";
    default:
      return std::strerror(error);
  }
}

std::string why_no_address(const std::string& host, milliseconds patience) {
  return look_up_within(host, patience).problem;
}

std::set<std::string> addresses_of(const std::string& host, milliseconds patience) {
  std::set<std::string> texts;
  for (const Address& address : look_up_within(host, patience).all) {
    texts.insert(address_text(address.storage));
  }
  return texts;
}

std::string address_text(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return inet_ntop(AF_INET, &four, text, sizeof(text)) == nullptr ? "" : text;
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  const bool carries_four = IN6_IS_ADDR_V4MAPPED(&six);
  const void* const bytes = carries_four ? &six.s6_addr[12] : &six.s6_addr[0];
  const int family = carries_four ? AF_INET : AF_INET6;
  return inet_ntop(family, bytes, text, sizeof(text)) == nullptr ? "" : text;
}

bool is_this_machine(const std::string& host, milliseconds patience) {
  const Addresses found = look_up_within(host, patience);
  // Only addresses of this machine can be bound.
  return found.all.empty() || std::ranges::any_of(found.all, [](const Address& address) {
           const Socket socket(address.storage.ss_family, 0);
           return socket.get() < 0 || bind(socket.get(), address.get(), address.length) == 0;
         });
}

Listener who_listens(const std::string& host, int port, milliseconds patience) {
  const Clock::time_point end = Clock::now() + patience;
  Listener found = Listener::kSilent;
  bool first = true;
  for (Address address : look_up_within(host, patience).all) {
    set_port(address, port);
    const Listener here = try_address(address, end);
    if (here == Listener::kTakes) return here;
    // kRefuses needs all addresses to refuse: a silent one may be the right one.
    found = first || found == here ? here : Listener::kSilent;
    first = false;
  }
  return found;
}

}  // namespace longspan
