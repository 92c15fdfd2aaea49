// Connections to the run's key-value store with a time limit, whatever listens there.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/endpoint.h"
#include "longspan/rendezvous/store.h"
#include "longspan/rendezvous/within.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;

/// Extra time, since torch may exceed its own timeout.
constexpr milliseconds kSlack{2000};
/// Time to find out what is wrong.
constexpr milliseconds kDiagnosisTime{2000};

/// Lets one thread at a time connect to a port, so that a new connection is known to be its own.
std::timed_mutex& door_to(int port) {
  static std::mutex mutex;
  static std::map<int, std::timed_mutex>& doors = *new std::map<int, std::timed_mutex>();
  const std::lock_guard lock(mutex);
  return doors[port];
}

std::string what_is_wrong(const std::string& host, int port, const std::string& reason) {
  if (const std::string problem = why_no_address(host, kDiagnosisTime); !problem.empty()) {
    return fmt::format("the name {} has no address ({})", host, problem);
  }
  const std::string where = endpoint_text(host, port);
  switch (who_listens(host, port, kDiagnosisTime)) {
    case Listener::kTakes:
      return fmt::format(
          "something listens at {} but does not answer as a torch store does{}; it may be another "
          "program",
          where, reason.empty() ? "" : fmt::format(" ({})", reason));
    case Listener::kRefuses:
      return fmt::format("nobody listens at {}", where);
    case Listener::kUnknown:
      return "this process may open no more files or connections (ulimit -n)";
    case Listener::kSilent:
      break;
  }
  return fmt::format("{} cannot be reached", where);
}

}  // namespace

std::chrono::seconds patience_to_meet(int64_t timeout_seconds) {
  return std::min(patience_of(timeout_seconds), std::chrono::seconds(300));
}

c10::intrusive_ptr<c10d::Store> open_store(const Rendezvous& where, bool serves,
                                           milliseconds timeout, Connections* made) {
  using Opened = c10::intrusive_ptr<c10d::Store>;
  const std::string host = where.master_address;
  const int port = where.master_port;
  if (serves) {
    if (const std::string problem = why_not_free(port); !problem.empty()) {
      throw CommunicationError(
          fmt::format("port {} of this machine is not free: {}", port, problem));
    }
  }
  // A serving thread takes no lock, so threads that wait for a server do not block it.
  std::unique_lock<std::timed_mutex> door;
  if (!serves) {
    door = std::unique_lock(door_to(port), timeout);
    if (!door) {
      throw CommunicationError(fmt::format("{} does not answer", endpoint_text(host, port)));
    }
  }
  // Filters by address, since another thread may connect to the same port of another machine
  // meanwhile.
  const std::set<std::string> addresses = addresses_of(host, timeout);
  const Connections earlier = connections_to(addresses, port);
  const auto fresh = [&] {
    Connections found = connections_to(addresses, port);
    for (const std::string& one : earlier) found.erase(one);
    return found;
  };
  std::string reason;
  try {
    // torch waits forever for the first answer of whatever accepts the connection.
    const std::optional<Opened> store =
        within<Opened>(timeout + kSlack, [host, port, serves, timeout]() -> Opened {
          c10d::TCPStoreOptions options;
          options.port = static_cast<uint16_t>(port);
          options.isServer = serves;
          options.waitWorkers = false;
          options.timeout = timeout;
          auto opened = c10::make_intrusive<c10d::TCPStore>(host, options);
          opened->setTimeout(timeout);
          return opened;
        });
    if (store) {
      if (made != nullptr) *made = fresh();
      return *store;
    }
    shut_down(fresh());
  } catch (const std::exception& error) {
    reason = brief_reason(error);
  }
  if (door) door.unlock();
  throw CommunicationError(what_is_wrong(host, port, reason));
}

c10::intrusive_ptr<c10d::Store> connect_to_store(const Rendezvous& where, const std::string& prefix,
                                                 milliseconds timeout, Connections* made) {
  // torch would retry again and again.
  if (who_listens(where.master_address, where.master_port, timeout) == Listener::kRefuses) {
    throw StoreIsGone(fmt::format("nobody listens at {} any more",
                                  endpoint_text(where.master_address, where.master_port)));
  }
  return c10::make_intrusive<c10d::PrefixStore>(prefix,
                                                open_store(where, /*serves=*/false, timeout, made));
}

std::string text_at(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return "";
  const std::vector<uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

void put_text(c10d::Store& store, const std::string& key, const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

}  // namespace longspan
