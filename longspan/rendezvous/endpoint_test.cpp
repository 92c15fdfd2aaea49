// Addresses and ports, and a store's address at which another program listens.
#include "longspan/rendezvous/endpoint.h"

#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "longspan/base/user_error.h"
#include "longspan/comm/mesh.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/meeting_place.h"
#include "longspan/rendezvous/within.h"
#include "longspan/testing/launcher.h"
#include "longspan/testing/silent_server.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::SilentServer;

constexpr seconds kPatience{20};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("within: a call's result, its error, or nothing in time") {
  CHECK(within<int>(kPatience, [] { return 7; }) == 7);
  CHECK_THROWS_AS(within<int>(kPatience, []() -> int { throw std::runtime_error("no"); }),
                  std::runtime_error);
  CHECK_FALSE(within<int>(milliseconds(20), [] {
    for (;;) pause();
    return 7;
  }));
  // A clock can wait for any number of seconds in a configuration.
  CHECK(within<int>(patience_of(std::numeric_limits<int64_t>::max()), [] { return 7; }) == 7);
  CHECK(patience_of(180'000'000) == seconds(180'000'000));
  CHECK(patience_of(-1) == seconds(0));
}

TEST_CASE("endpoints: ports have a range, IPv6 addresses brackets") {
  for (const int64_t port : {int64_t{0}, int64_t{-1}, int64_t{65536}, int64_t{70000}}) {
    const std::string message = message_of([&] { require_port("MASTER_PORT", port); });
    CHECK(message.find("MASTER_PORT=" + std::to_string(port)) == 0);
    CHECK(message.find("65535") != std::string::npos);
    CHECK_THROWS_AS(require_port("MASTER_PORT", port), UserError);
  }
  CHECK(require_port("MASTER_PORT", 65535) == 65535);
  CHECK(endpoint_text("node7", 29500) == "node7:29500");
  CHECK(endpoint_text("::1", 29500) == "[::1]:29500");
  CHECK(bare_host("[::1]") == "::1");
  CHECK(bare_host("node7") == "node7");
}

TEST_CASE("endpoints: who listens, and whether this machine can") {
  const int free_port = testing::free_port();
  CHECK(why_not_free(free_port).empty());
  CHECK(who_listens("127.0.0.1", free_port, kPatience) == Listener::kRefuses);
  const SilentServer server;
  CHECK(why_not_free(server.port()).find("another program") == 0);
  CHECK(who_listens("127.0.0.1", server.port(), kPatience) == Listener::kTakes);
  CHECK(why_no_address("127.0.0.1", kPatience).empty());
  CHECK(why_no_address("::1", kPatience).empty());
  // The name is too long for a query.
  CHECK_FALSE(why_no_address(std::string(64, 'x') + ".invalid", kPatience).empty());
  CHECK(is_this_machine("127.0.0.1", kPatience));
  // An address for documentation. The system may allow any address.
  int may_have_any = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_nonlocal_bind") >> may_have_any;
  CHECK(is_this_machine("192.0.2.1", kPatience) == (may_have_any != 0));
}

TEST_CASE("endpoints: an address has one text, whichever way it is carried") {
  using Texts = std::set<std::string>;
  CHECK(addresses_of("127.0.0.1", kPatience) == Texts{"127.0.0.1"});
  CHECK(addresses_of("::ffff:127.0.0.1", kPatience) == Texts{"127.0.0.1"});
  CHECK(addresses_of("::1", kPatience) == Texts{"::1"});
  CHECK(addresses_of(std::string(64, 'x') + ".invalid", kPatience).empty());
}

TEST_CASE("stores: what listens but does not answer is told, in time") {
  const SilentServer server;
  const std::string address = "127.0.0.1:" + std::to_string(server.port());
  Rendezvous where;
  where.rank = 1;
  where.world_size = 2;
  where.master_port = server.port();
  ParallelPlan plan;
  plan.world_size = plan.data_size = 2;
  const std::string of_mesh =
      message_of([&] { make_mesh(where, plan, Link::kGloo, /*timeout_seconds=*/1); });
  CHECK(of_mesh.find("Rank 1 of 2") == 0);
  CHECK(of_mesh.find(address + " but does not answer as a torch store") != std::string::npos);

  where.launcher_hosts_store = true;
  const std::string of_start = message_of([&] { joined_start(where, /*timeout_seconds=*/1); });
  CHECK(of_start.find("Rank 1 of 2") == 0);
  CHECK(of_start.find(address + " but does not answer as a torch store") != std::string::npos);

  where.launcher_hosts_store = false;
  where.rank = 0;
  const std::string of_server =
      message_of([&] { make_mesh(where, plan, Link::kGloo, /*timeout_seconds=*/1); });
  CHECK(of_server.find("is not free: another program listens there") != std::string::npos);

  const testing::Launcher launcher;
  const int good = launcher.worker(0, 2).master_port;
  require_store_or_nobody("127.0.0.1", good, kPatience);
  require_store_or_nobody("127.0.0.1", testing::free_port(), kPatience);
  CHECK_THROWS_AS(require_store_or_nobody("127.0.0.1", server.port(), milliseconds(500)),
                  UserError);
}

}  // namespace longspan
