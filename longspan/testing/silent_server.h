// A server that occupies a port and never answers.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace longspan::testing {

/// Listens on loopback for its lifetime: the system accepts connections, and nothing is ever sent.
class SilentServer {
 public:
  /// Listens at 127.0.0.`number`. Port 0 stands for a free port.
  explicit SilentServer(uint32_t number = 1, int port = 0)
      : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + number);
    address.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t length = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (bind(descriptor_, any, length) == 0 && listen(descriptor_, 64) == 0 &&
        getsockname(descriptor_, any, &length) == 0) {
      port_ = ntohs(address.sin_port);
    }
  }
  ~SilentServer() { close(descriptor_); }
  SilentServer(const SilentServer&) = delete;
  SilentServer& operator=(const SilentServer&) = delete;

  /// 0 if the system gave no port.
  int port() const { return port_; }

 private:
  int descriptor_;
  int port_ = 0;
};

/// Returns a port of 127.0.0.1 that is free now, for tests that run concurrently.
inline int free_port() { return SilentServer().port(); }

}  // namespace longspan::testing
