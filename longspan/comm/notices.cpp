#include "longspan/comm/notices.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "longspan/comm/backend.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{30000};
/// Of one that is about to end.
constexpr std::chrono::milliseconds kShortPatience{2000};
/// Between two looks whether all are here: a part of the time that has passed, within these.
constexpr std::chrono::milliseconds kShortestPause{1}, kLongestPause{250};
/// Who serves the store gives the others' heartbeats, one a second, time to look at it.
constexpr std::chrono::milliseconds kLingers{2500};

}  // namespace

struct Notices::Impl {
  const Rendezvous where;
  int64_t num_meetings = 0;
  c10::intrusive_ptr<c10d::Store> store;  // of wait_for_all

  c10::intrusive_ptr<c10d::Store> connect(std::chrono::milliseconds patience) const {
    return connect_to_store(where, where.store_prefix + kNoticesPrefix, patience);
  }
};

Notices::Notices(const Rendezvous& where) {
  if (where.world_size > 1) impl_ = std::unique_ptr<Impl>(new Impl{.where = where, .store = {}});
}

Notices::~Notices() = default;

void Notices::wait_for_all() {
  if (!impl_) return;
  const auto key_of = [](int64_t meeting) { return fmt::format("meeting{}", meeting); };
  const std::string key = key_of(impl_->num_meetings++), all = key + "/all";
  try {
    if (!impl_->store) impl_->store = impl_->connect(kPatience);
    c10d::Store& store = *impl_->store;
    if (store.add(key, 1) == impl_->where.world_size) {
      put_text(store, all, "yes");
      // Who is here has left the meeting before.
      const std::string before = key_of(impl_->num_meetings - 2);
      store.deleteKey(before);
      store.deleteKey(before + "/all");
      return;
    }
    // Waiting inside the store would be told of as an error every time that the alarm is looked at.
    const Clock::time_point start = Clock::now();
    while (!store.check({all}) && !store.check({kAlarm})) {
      const auto passed =
          std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
      std::this_thread::sleep_for(std::clamp(passed / 16, kShortestPause, kLongestPause));
    }
  } catch (const std::exception&) {
    impl_->store.reset();
  }
}

void Notices::announce_stop(const std::string& why) const {
  if (!impl_) return;
  try {
    put_text(*impl_->connect(kShortPatience), kStopNotice, why);
  } catch (const std::exception&) {
    return;
  }
  const Rendezvous& where = impl_->where;
  if (where.rank == 0 && !where.launcher_hosts_store) std::this_thread::sleep_for(kLingers);
}

}  // namespace longspan
