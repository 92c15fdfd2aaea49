#include "longspan/comm/notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "longspan/comm/store_client.h"
#include "longspan/comm/within.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

/// With a store that is silent: a fourth of ddp_timeout, within these.
constexpr std::chrono::milliseconds kLeastPatience{5000}, kMostPatience{60000};
/// Of one that is about to end.
constexpr std::chrono::milliseconds kShortPatience{2000};
/// Between two looks whether all are here: a part of the time that has passed, within these.
constexpr std::chrono::milliseconds kShortestPause{1}, kLongestPause{250};
/// Who serves the store gives the others' heartbeats, one a second, time to look at it.
constexpr std::chrono::milliseconds kLingers{2500};

}  // namespace

struct Notices::Impl {
  Impl(const Rendezvous& rendezvous, std::chrono::milliseconds patience)
      : where(rendezvous), store(where, prefix(), patience) {}

  std::string prefix() const { return where.store_prefix + kNoticesPrefix; }

  const Rendezvous where;
  int64_t num_meetings = 0;
  StoreClient store;  // of wait_for_all
};

Notices::Notices(const Rendezvous& where, int64_t timeout_seconds) {
  if (where.world_size == 1) return;
  const std::chrono::milliseconds wanted = patience_of(timeout_seconds) / 4;
  impl_ = std::make_unique<Impl>(where, std::clamp(wanted, kLeastPatience, kMostPatience));
}

Notices::~Notices() = default;

void Notices::wait_for_all() {
  if (!impl_) return;
  const auto key_of = [](int64_t meeting) { return fmt::format("meeting{}", meeting); };
  const std::string key = key_of(impl_->num_meetings++), all = key + "/all";
  StoreClient& store = impl_->store;
  const std::optional<int64_t> num_here = store.add(key, 1);
  if (!num_here) return;
  if (*num_here == impl_->where.world_size) {
    store.put(all, "yes");
    // Who is here has left the meeting before.
    const std::string before = key_of(impl_->num_meetings - 2);
    store.remove(before);
    store.remove(before + "/all");
    return;
  }
  // Waiting inside the store would be told of as an error every time that the alarm is looked at.
  const Clock::time_point start = Clock::now();
  while (!store.has(all).value_or(true) && !store.has(kAlarm).value_or(true)) {
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    std::this_thread::sleep_for(std::clamp(passed / 16, kShortestPause, kLongestPause));
  }
}

void Notices::announce_stop(const std::string& why) const {
  if (!impl_) return;
  const Rendezvous& where = impl_->where;
  StoreClient store(where, impl_->prefix(), kShortPatience);
  if (!store.put(kStopNotice, why)) return;
  if (where.rank == 0 && !where.launcher_hosts_store) std::this_thread::sleep_for(kLingers);
}

}  // namespace longspan
