#include "longspan/liveness/unanswered.h"

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

/// A connection without answers, and its watcher, which looks once a second.
class Silent {
 public:
  Silent() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<in_port_t>(server_.port()));
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    watched.asks_in(connections_to({"127.0.0.1"}, server_.port()));
  }
  ~Silent() { close(socket_); }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;

  void look_for(int num_seconds) {
    for (int i = 0; i < num_seconds; ++i)
      watched.look(begun, doing, now += seconds(1), seconds(10));
  }
  bool has_ended() const {
    char byte = 0;
    return recv(socket_, &byte, 1, MSG_DONTWAIT) == 0;
  }

  Unanswered watched;
  StartedCollectives begun{{"world0", 5}};
  std::string doing = "step 7";
  SinceWhen::Clock::time_point now{};

 private:
  const testing::SilentServer server_;
  const int socket_;
};

}  // namespace

TEST_CASE("unanswered: a question ends where the rank has not moved for longer than the limit") {
  Silent silent;
  silent.look_for(30);
  CHECK_FALSE(silent.has_ended());  // no question is under way
  const Unanswered::Question question(silent.watched);
  silent.look_for(11);
  CHECK_FALSE(silent.has_ended());
  silent.look_for(1);
  CHECK(silent.has_ended());
}

TEST_CASE("unanswered: who gets on, asks anew or was itself stopped is not cut off") {
  Silent silent;
  std::optional<Unanswered::Question> question(silent.watched);
  const auto another_ten = [&] {
    silent.look_for(10);
    CHECK_FALSE(silent.has_ended());
  };
  another_ten();
  ++silent.begun["world0"];
  another_ten();
  silent.doing = "step 8";
  another_ten();
  question.reset();
  question.emplace(silent.watched);
  another_ten();
  silent.now += seconds(60);
  another_ten();
  silent.look_for(2);
  CHECK(silent.has_ended());
}

}  // namespace longspan
