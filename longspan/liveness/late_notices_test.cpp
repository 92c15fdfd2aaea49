#include "longspan/liveness/late_notices.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <chrono>

#include "longspan/rendezvous/store_client.h"
#include "longspan/testing/conditions.h"
#include "longspan/testing/launcher.h"
#include "longspan/testing/silent_server.h"

namespace longspan {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::comes_true;
using testing::num_threads;

TEST_CASE("late notices: their thread ends with them, though the store goes on to be silent") {
  const testing::SilentServer server;
  Rendezvous where;
  where.master_port = server.port();
  const int64_t threads = num_threads();
  {
    LateNotices late(where, "/test", milliseconds(20));
    late.put("one", hours(1));
    CHECK(comes_true([&] { return num_threads() > threads; }));
  }
  CHECK(comes_true([&] { return num_threads() <= threads; }));
}

TEST_CASE("late notices: each has its own time") {
  const testing::SilentServer server;
  Rendezvous where;
  where.master_port = server.port();
  const int64_t threads = num_threads();
  LateNotices late(where, "/test", milliseconds(20));
  for (const char* key : {"one", "two"}) late.put(key, milliseconds(50));
  CHECK(comes_true([&] { return num_threads() <= threads; }));
}

TEST_CASE("late notices: where no thread can be started, the next one brings both") {
  const testing::Launcher launcher;
  const Rendezvous where = launcher.worker(0, 2);
  pthread_attr_t usual, huge;
  REQUIRE(::pthread_getattr_default_np(&usual) == 0);
  REQUIRE(::pthread_getattr_default_np(&huge) == 0);
  // No machine has room for such a stack.
  REQUIRE(::pthread_attr_setstacksize(&huge, size_t{1} << 60) == 0);
  LateNotices late(where, "/test", seconds(20));
  REQUIRE(::pthread_setattr_default_np(&huge) == 0);
  CHECK_NOTHROW(late.put("one", hours(1)));
  REQUIRE(::pthread_setattr_default_np(&usual) == 0);
  ::pthread_attr_destroy(&huge);
  ::pthread_attr_destroy(&usual);
  StoreClient store(where, "/test", seconds(20));
  CHECK(store.has("one") == false);
  late.put("two", hours(1));
  CHECK(comes_true([&] { return store.has("one") == true && store.has("two") == true; }));
}

}  // namespace longspan
