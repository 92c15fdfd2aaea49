#include "longspan/liveness/store_watchdog.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>

#include "longspan/testing/silent_server.h"

namespace longspan {
namespace {

using std::chrono::seconds;

/// A connection without answers, and its watchdog, which checks once a second.
class Silent {
 public:
  Silent() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<in_port_t>(server_.port()));
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    watched.watch_connections(connections_to({"127.0.0.1"}, server_.port()));
  }
  ~Silent() { close(socket_); }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;

  void check_for(int num_seconds) {
    for (int i = 0; i < num_seconds; ++i)
      watched.check(begun, doing, now += seconds(1), seconds(10));
  }
  bool has_ended() const {
    char byte = 0;
    return recv(socket_, &byte, 1, MSG_DONTWAIT) == 0;
  }

  StoreWatchdog watched;
  StartedCollectives begun{{"world0", 5}};
  std::string doing = "step 7";
  LastProgress::Clock::time_point now{};

 private:
  const testing::SilentServer server_;
  const int socket_;
};

}  // namespace

TEST_CASE("store watchdog: a request ends where the rank has not moved for longer than the limit") {
  Silent silent;
  silent.check_for(30);
  CHECK_FALSE(silent.has_ended());  // no request is under way
  const StoreWatchdog::Request request(silent.watched);
  silent.check_for(11);
  CHECK_FALSE(silent.has_ended());
  silent.check_for(1);
  CHECK(silent.has_ended());
}

TEST_CASE("store watchdog: who gets on, sends a new request or was itself stopped is not cut off") {
  Silent silent;
  std::optional<StoreWatchdog::Request> request(silent.watched);
  const auto another_ten = [&] {
    silent.check_for(10);
    CHECK_FALSE(silent.has_ended());
  };
  another_ten();
  ++silent.begun["world0"];
  another_ten();
  silent.doing = "step 8";
  another_ten();
  request.reset();
  request.emplace(silent.watched);
  another_ten();
  silent.now += seconds(60);
  another_ten();
  silent.check_for(2);
  CHECK(silent.has_ended());
}

}  // namespace longspan
