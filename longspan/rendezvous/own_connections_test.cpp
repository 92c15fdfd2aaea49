#include "longspan/rendezvous/own_connections.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <string>
#include <thread>

#include "longspan/testing/silent_server.h"

namespace longspan {

namespace {

const std::set<std::string> kLoopback{"127.0.0.1"};

/// A connection to 127.0.0.NUMBER.
int connected(int port, uint32_t number = 1) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + number);
  address.sin_port = htons(static_cast<in_port_t>(port));
  REQUIRE(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return descriptor;
}

}  // namespace

TEST_CASE(
    "own connections: one is found by address and port, and ended under a thread that waits in "
    "it") {
  const testing::SilentServer server, other;
  CHECK(connections_to(kLoopback, server.port()).empty());
  const int one = connected(server.port()), another = connected(server.port()),
            elsewhere = connected(other.port());
  const Connections two = connections_to(kLoopback, server.port()),
                    third = connections_to(kLoopback, other.port());
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
  CHECK(recv(elsewhere, &byte, 1, MSG_DONTWAIT) == -1);  // no data, but still open
  CHECK(connections_to(kLoopback, other.port()) == third);
  for (const int descriptor : {one, another, elsewhere}) close(descriptor);
  CHECK(connections_to(kLoopback, other.port()).empty());
  shut_down(third);  // nothing left to end
}

TEST_CASE("own connections: one to the same port of another address is another's") {
  const testing::SilentServer server;
  const testing::SilentServer elsewhere(/*number=*/2, server.port());
  REQUIRE(elsewhere.port() == server.port());
  const int here = connected(server.port()), there = connected(server.port(), /*number=*/2);
  const Connections found = connections_to(kLoopback, server.port());
  CHECK(found.size() == 1);
  CHECK(connections_to({"127.0.0.2"}, server.port()).size() == 1);
  CHECK(connections_to({"127.0.0.1", "127.0.0.2"}, server.port()).size() == 2);
  CHECK(connections_to({"::1"}, server.port()).empty());
  shut_down(found);
  char byte = 0;
  CHECK(recv(here, &byte, 1, 0) == 0);
  CHECK(recv(there, &byte, 1, MSG_DONTWAIT) == -1);
  for (const int descriptor : {here, there}) close(descriptor);
}

}  // namespace longspan
