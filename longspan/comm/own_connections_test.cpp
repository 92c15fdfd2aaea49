#include "longspan/comm/own_connections.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "longspan/testing/silent_server.h"

namespace longspan {

TEST_CASE("own connections: one is found by its port, and ended under a thread that waits in it") {
  const testing::SilentServer server, other;
  CHECK(connections_to(server.port()).empty());
  const auto connected = [](int port) {
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<in_port_t>(port));
    REQUIRE(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    return descriptor;
  };
  const int one = connected(server.port()), another = connected(server.port()),
            elsewhere = connected(other.port());
  const Connections two = connections_to(server.port()), third = connections_to(other.port());
  CHECK(two.size() == 2);
  CHECK(third.size() == 1);

  ssize_t got = -1;
  std::thread waiting([&] {
    char byte = 0;
    got = recv(one, &byte, 1, 0);
  });
  shut_down(two);
  waiting.join();
  CHECK(got == 0);
  char byte = 0;
  CHECK(recv(another, &byte, 1, 0) == 0);
  CHECK(recv(elsewhere, &byte, 1, MSG_DONTWAIT) == -1);  // nothing has come, and may yet
  CHECK(connections_to(other.port()) == third);
  for (const int descriptor : {one, another, elsewhere}) close(descriptor);
  CHECK(connections_to(other.port()).empty());
  shut_down(third);  // nothing is left to end
}

}  // namespace longspan
