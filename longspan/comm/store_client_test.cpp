// Questions to stores that are silent, for a while or for good.
#include "longspan/comm/store_client.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "longspan/comm/own_connections.h"
#include "longspan/testing/launcher.h"
#include "longspan/testing/relay.h"
#include "longspan/testing/silent_server.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int64_t num_entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

int64_t num_threads() { return num_entries("/proc/self/task"); }
int64_t num_descriptors() { return num_entries("/proc/self/fd"); }

bool comes_true(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

}  // namespace

TEST_CASE("store client: a store that is silent keeps one thread and one descriptor, for a while") {
  const testing::SilentServer server;
  Rendezvous where;
  where.master_port = server.port();
  const int64_t threads = num_threads(), descriptors = num_descriptors();
  {
    StoreClient client(where, "/test", milliseconds(20));
    int64_t most_threads = 0, most_descriptors = 0;
    size_t most_connections = 0;
    for (int question = 0; question < 30; ++question) {
      CHECK_FALSE(client.add("key", 1));
      most_threads = std::max(most_threads, num_threads() - threads);
      most_descriptors = std::max(most_descriptors, num_descriptors() - descriptors);
      most_connections =
          std::max(most_connections, connections_to({"127.0.0.1"}, server.port()).size());
      std::this_thread::sleep_for(milliseconds(25));  // another one may be asked then
    }
    // One that asks, one that connects for it, and one that looks up the name of who listens, each
    // while the one before it ends.
    CHECK(most_threads <= 5);
    CHECK(most_descriptors <= 4);
    CHECK(most_connections <= 2);
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
  REQUIRE(comes_true([&] { return client.add("key", 1) == 1; }));
  const int64_t threads = num_threads();
  CHECK(connections_to({"127.0.0.1"}, relay.port()).size() == 1);

  relay.hold(true);
  CHECK_FALSE(client.add("other", 1));
  CHECK(comes_true([&] {
    return num_threads() <= threads && connections_to({"127.0.0.1"}, relay.port()).empty();
  }));
  CHECK_FALSE(client.is_gone());

  // The store speaks again: by a new connection, and by that alone.
  relay.hold(false);
  CHECK(comes_true([&] { return client.add("key", 1).has_value(); }));
  CHECK(connections_to({"127.0.0.1"}, relay.port()).size() == 1);
  // The thread of a question that was answered may live for an instant longer.
  CHECK(comes_true([&] { return num_threads() <= threads; }));
}

}  // namespace longspan
