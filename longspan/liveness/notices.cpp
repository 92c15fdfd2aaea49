#include "longspan/liveness/notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "longspan/files/process_identity.h"
#include "longspan/liveness/beat.h"
#include "longspan/liveness/late_notices.h"
#include "longspan/liveness/store_beats.h"
#include "longspan/rendezvous/store_client.h"
#include "longspan/rendezvous/within.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

/// Patience with a silent store: a fourth of ddp_timeout, within these limits.
constexpr std::chrono::milliseconds kLeastPatience{5000}, kMostPatience{60000};
/// Patience of the serving rank with its own store.
constexpr std::chrono::milliseconds kShortPatience{2000};
/// Patience of an ending rank with one answer of the store, which may be silent for seconds on a
/// busy machine. Before all ranks have met, it also limits the whole announcement, since no rank
/// may be there to read it.
constexpr std::chrono::milliseconds kLastPatience{6000};
/// Pause between two checks whether all are here: a part of the time that has passed, within these
/// limits.
constexpr std::chrono::milliseconds kShortestPause{1}, kLongestPause{250};
constexpr std::chrono::milliseconds kBetweenNotices{50};
/// How long an alarm must last to count, since it may be taken back.
constexpr std::chrono::milliseconds kAlarmLasts{2000};
constexpr Clock::time_point kNever = Clock::time_point::max();

std::string prefix_of(const Rendezvous& where) { return where.store_prefix + kNoticesPrefix; }

}  // namespace

std::string heard_of_stop(int rank) { return fmt::format("{}/heard{}", kStopNotice, rank); }

void wait_until_all_heard_of_stop(const Rendezvous& where, std::chrono::duration<double> patience) {
  if (!where.serves_store()) return;
  StoreClient store(where, prefix_of(where), kShortPatience);
  const std::string machine = own_machine();
  const auto is_waited_for = [&](int rank) {
    // No answer in time means nothing: this process serves the store, on a machine that may be
    // busy.
    if (store.has(heard_of_stop(rank)).value_or(store.is_gone())) return false;
    const std::optional<Beat> beat = beat_from(store.text(key_of_beat(rank)).value_or(""));
    return !beat || !has_left(*beat, machine);
  };
  const Clock::time_point start = Clock::now();
  for (int rank = 1; rank < where.world_size; ++rank) {
    while (is_waited_for(rank)) {
      if (Clock::now() - start > patience) return;
      std::this_thread::sleep_for(kBetweenNotices);
    }
  }
}

struct Notices::Impl {
  Impl(const Rendezvous& rendezvous, std::chrono::milliseconds timeout_of_collectives)
      : where(rendezvous),
        timeout(timeout_of_collectives),
        patience(std::clamp(timeout / 4, kLeastPatience, kMostPatience)),
        store(where, prefix(), patience),
        late(where, prefix(), patience) {}

  /// Returns without the store's answer. Where the store is only silent, leaves a notice there, so
  /// that no rank waits for this one.
  void leave(const std::string& all) {
    if (!store.is_gone()) late.put(all, timeout);
  }

  std::string prefix() const { return prefix_of(where); }

  const Rendezvous where;
  const std::chrono::milliseconds timeout, patience;
  std::atomic<bool> all_have_met = false;
  int64_t num_meetings = 0;
  StoreClient store;  // for wait_for_all
  LateNotices late;
};

Notices::Notices(const Rendezvous& where, int64_t timeout_seconds) {
  if (where.world_size == 1) return;
  impl_ = std::make_unique<Impl>(where, patience_of(timeout_seconds));
}

Notices::~Notices() = default;

void Notices::wait_for_all() {
  if (!impl_) return;
  const int num_ranks = impl_->where.world_size;
  const auto key_of = [](int64_t meeting) { return fmt::format("meeting{}", meeting); };
  const std::string key = key_of(impl_->num_meetings++), all = key + "/all";
  const auto key_of_rank = [&](int rank) { return fmt::format("{}/{}", key, rank); };
  const std::string own = key_of_rank(impl_->where.rank);
  StoreClient& store = impl_->store;
  // Keys of ranks, not the count, say who is here, since a question may be received twice. The
  // count says which rank may be the last, so that not every rank asks for all keys. Each is an
  // addition, whose answer shows that it has arrived.
  if (!store.add(own, 1)) return impl_->leave(all);
  const std::optional<int64_t> num_heard = store.add(key, 1);
  if (!num_heard) return impl_->leave(all);
  if (*num_heard >= num_ranks) {
    std::vector<std::string> names;
    for (int rank = 0; rank < num_ranks; ++rank) names.push_back(key_of_rank(rank));
    const std::optional<bool> all_here = store.has_all(names);
    if (!all_here || (*all_here && !store.add(all, 1))) return impl_->leave(all);
    if (*all_here && impl_->num_meetings > 1) {
      // A rank that has reached this meeting has left every earlier one.
      const std::string before = key_of(impl_->num_meetings - 2);
      store.remove(before);
      store.remove(before + "/all");
    }
  }
  // Polls, since torch would log an error at every timeout of a wait inside the store.
  const Clock::time_point start = Clock::now();
  Clock::time_point alarmed = kNever;
  for (;;) {
    const std::optional<bool> all_here = store.has(all);
    const std::optional<bool> alarm = all_here ? store.has(kAlarm) : std::nullopt;
    if (!all_here || !alarm) return impl_->leave(all);
    if (*all_here) store.remove(own);  // no other rank reads it any more
    if (*all_here) return;
    alarmed = *alarm ? std::min(alarmed, Clock::now()) : kNever;
    if (*alarm && Clock::now() - alarmed > kAlarmLasts) return;
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    std::this_thread::sleep_for(std::clamp(passed / 16, kShortestPause, kLongestPause));
  }
}

void Notices::all_have_met() {
  if (impl_) impl_->all_have_met = true;
}

void Notices::announce_stop(const std::string& why) const {
  if (!impl_) return;
  const Rendezvous& where = impl_->where;
  const std::chrono::milliseconds in_all = impl_->all_have_met ? impl_->timeout : kLastPatience;
  const Clock::time_point end = Clock::now() + in_all;
  StoreClient store(where, impl_->prefix(), kLastPatience);
  // A rank that ends without this notice counts as killed.
  while (!store.put(kStopNotice, why) || !store.put(heard_of_stop(where.rank), "yes")) {
    if (store.is_gone() || Clock::now() > end) return;
    std::this_thread::sleep_for(kBetweenNotices);
  }
  wait_until_all_heard_of_stop(where, in_all);
}

}  // namespace longspan
