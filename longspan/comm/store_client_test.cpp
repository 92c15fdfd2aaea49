// Questions to stores that are silent, for a while or for good.
#include "longspan/comm/store_client.h"

#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "longspan/comm/own_connections.h"
#include "longspan/testing/conditions.h"
#include "longspan/testing/launcher.h"
#include "longspan/testing/relay.h"
#include "longspan/testing/silent_server.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;
using testing::comes_true;
using testing::num_descriptors;
using testing::num_threads;

const std::set<std::string> kLoopbackOnly{"127.0.0.1"};

}  // namespace

TEST_CASE("store client: a store that is silent keeps one thread and one descriptor, for a while") {
  const testing::SilentServer server;
  Rendezvous where;
  where.master_port = server.port();
  const int64_t threads = num_threads(), descriptors = num_descriptors();
  {
    StoreClient client(where, "/test", milliseconds(20));
    for (int question = 0; question < 30; ++question) {
      CHECK_FALSE(client.add("key", 1));
      // One that asks, one that connects for it, and one that looks at who listens, each while the
      // one before it ends, which takes a busy machine some time. Were they kept, it would be one
      // for each question.
      REQUIRE(comes_true([&] {
        return num_threads() - threads <= 5 && num_descriptors() - descriptors <= 4 &&
               connections_to(kLoopbackOnly, server.port()).size() <= 2;
      }));
      std::this_thread::sleep_for(milliseconds(25));  // another one may be asked then
    }
    CHECK_FALSE(client.is_gone());
  }
  // What is left behind ends, though the server goes on to be silent.
  CHECK(comes_true([&] { return num_threads() <= threads && num_descriptors() <= descriptors; }));
}

TEST_CASE("store client: a question that nobody answers ends with its connection") {
  const testing::Launcher launcher;
  testing::Relay relay(launcher.worker(0, 2).master_port);
  Rendezvous where = launcher.worker(0, 2);
  where.master_port = relay.port();
  StoreClient client(where, "/test", milliseconds(200));
  REQUIRE(comes_true([&] { return client.add("key", 1).has_value(); }));
  const auto has_one_connection = [&] {
    return connections_to(kLoopbackOnly, relay.port()).size() == 1;
  };
  CHECK(comes_true(has_one_connection));
  const int64_t threads = num_threads();

  relay.hold(true);
  CHECK_FALSE(client.add("other", 1));
  CHECK(comes_true(
      [&] { return num_threads() <= threads && connections_to(kLoopbackOnly, relay.port()).empty(); }));
  CHECK_FALSE(client.is_gone());

  // The store speaks again: by a new connection, and by that alone.
  relay.hold(false);
  CHECK(comes_true([&] { return client.add("key", 1).has_value(); }));
  CHECK(comes_true(has_one_connection));
  // The thread of a question that was answered may live for an instant longer.
  CHECK(comes_true([&] { return num_threads() <= threads; }));
}

}  // namespace longspan
