// Questions to stores that are silent, for a while or forever.
#include "longspan/rendezvous/store_client.h"

#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "longspan/rendezvous/own_connections.h"
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
      // One thread asks, one connects for it, and one checks for a listener, each while the
      // previous one ends, which takes time on a busy machine. A leak would add one thread for each
      // question.
      REQUIRE(comes_true([&] {
        return num_threads() - threads <= 5 && num_descriptors() - descriptors <= 4 &&
               connections_to(kLoopbackOnly, server.port()).size() <= 2;
      }));
      std::this_thread::sleep_for(milliseconds(25));  // until the next question may be asked
    }
    CHECK_FALSE(client.is_gone());
  }
  // Threads that were left behind end although the server stays silent.
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
  CHECK(comes_true([&] {
    return num_threads() <= threads && connections_to(kLoopbackOnly, relay.port()).empty();
  }));
  CHECK_FALSE(client.is_gone());

  // The store answers again, by one new connection.
  relay.hold(false);
  CHECK(comes_true([&] { return client.add("key", 1).has_value(); }));
  CHECK(comes_true(has_one_connection));
  // The thread of an answered question may live a moment longer.
  CHECK(comes_true([&] { return num_threads() <= threads; }));
}

}  // namespace longspan
