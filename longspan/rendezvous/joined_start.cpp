// Agrees on a name among workers that were started together, in a store that outlives them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/endpoint.h"
#include "longspan/rendezvous/store.h"
#include "longspan/rendezvous/within.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kStartPrefix = "/longspan/start";
constexpr std::chrono::milliseconds kPollInterval{20};

std::string fresh_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string heard_key(const std::string& name, int rank) {
  return fmt::format("heard/{}/{}", name, rank);
}

/// Rank 0 answers every worker that announces itself. It may also answer an announcement of an
/// earlier worker, which nobody reads. So all have joined only when all confirm this answer.
std::string gather_workers(c10d::Store& store, int world_size, Clock::time_point end) {
  const std::string name = fresh_name();
  std::set<int> missing;
  for (int rank = 1; rank < world_size; ++rank) missing.insert(missing.end(), rank);
  std::map<int, std::string> answered;
  for (;;) {
    for (int rank = 1; rank < world_size; ++rank) {
      const std::string worker = text_at(store, fmt::format("here/{}", rank));
      if (worker.empty() || std::exchange(answered[rank], worker) == worker) continue;
      put_text(store, "answer/" + worker, name);
    }
    std::erase_if(missing, [&](int rank) { return store.check({heard_key(name, rank)}); });
    if (missing.empty()) return name;
    if (Clock::now() > end) {
      throw CommunicationError(
          fmt::format("rank {}{} did not come", *missing.begin(),
                      missing.size() > 1 ? " and " + counted(missing.size() - 1, "other") : ""));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace

Rendezvous joined_start(Rendezvous where, int64_t timeout_seconds) {
  if (!where.launcher_hosts_store || where.world_size == 1) return where;
  const std::chrono::seconds patience = patience_to_meet(timeout_seconds);
  const Clock::time_point end = Clock::now() + patience;
  try {
    where.store_prefix =
        "/start/" + while_meeting<std::string>(end + kTimeToMeet, [where, patience, end] {
          // The launchers have met in the store before they start workers. torch retries all the
          // same.
          const auto store = c10::make_intrusive<c10d::PrefixStore>(
              kStartPrefix, open_store(where, /*serves=*/false, patience));
          if (where.rank == 0) return gather_workers(*store, where.world_size, end);
          const std::string self = fresh_name();
          put_text(*store, fmt::format("here/{}", where.rank), self);
          store->wait({"answer/" + self});
          const std::string name = text_at(*store, "answer/" + self);
          put_text(*store, heard_key(name, where.rank), "yes");
          return name;
        });
    return where;
  } catch (const std::exception& error) {
    throw CommunicationError(fmt::format(
        "Rank {} of {} did not find its peers through the launcher's store at {}: {}. Have all "
        "machines started their workers?",
        where.rank, where.world_size, endpoint_text(where.master_address, where.master_port),
        brief_reason(error)));
  }
}

}  // namespace longspan
