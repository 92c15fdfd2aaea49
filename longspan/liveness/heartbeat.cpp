#include "longspan/liveness/heartbeat.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "longspan/liveness/beat.h"
#include "longspan/liveness/lost_store.h"
#include "longspan/liveness/notices.h"
#include "longspan/liveness/stall_detector.h"
#include "longspan/liveness/store_beats.h"
#include "longspan/liveness/store_watchdog.h"
#include "longspan/rendezvous/store.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Beats = std::vector<std::optional<Beat>>;

/// Time for the main thread to notice by itself that a rank is gone.
constexpr Seconds kGrace{10};
/// Time between two checks of the others, in beats: a living rank has beaten in between.
constexpr double kBeatsBetweenChecks = 2.5;

}  // namespace

/// Shared with the thread, which is left behind where it hangs in a silent store.
struct Heartbeat::Impl {
  Impl(const Rendezvous& rendezvous, int64_t timeout_seconds, EndProcess end, OnStopNotice on_stop,
       OnLauncherGone on_gone)
      : where(rendezvous),
        end_process(std::move(end)),
        on_stop_notice(std::move(on_stop)),
        on_launcher_gone(std::move(on_gone)),
        timeout(static_cast<double>(timeout_seconds)),
        // A few beats must fit into the shortest timeout. More beats would load the store's host in
        // a large run.
        interval(std::clamp(static_cast<double>(timeout_seconds) / 20, 0.1, 1.0)) {}

  /// The body of the thread, which alone uses `store`.
  void beat_on() {
    std::unique_lock lock(mutex);
    Clock::time_point watched{};
    while (!stop) {
      ++own.count;
      if (collectives) own.collectives = collectives->now();
      const Beat beat = own;
      const bool wants_diagnosis = asked && !answered;
      lock.unlock();
      const bool posted = on_store([&] { post_beat(*store, where.rank, beat); });
      if (wants_diagnosis) {
        Beats seen;
        std::string found = diagnose(posted, seen);
        lock.lock();
        answer = std::move(found);
        answered = true;
        if (own.ending == Beat::Ending::kAsks) own.ending = Beat::Ending::kLost;
        told.notify_all();
        lock.unlock();
        if (where.serves_store()) linger(seen);
      } else if (Clock::now() - watched >= interval) {
        watched = Clock::now();
        watch();
      }
      lock.lock();
      posted_count = own.count;
      told.notify_all();
      const auto pressing = [&] { return stop || (asked && !answered) || urgent; };
      wake.wait_for(lock, interval, [&] { return pressing() || moved; });
      // Steps of milliseconds get no message each.
      if (!pressing()) wake.wait_for(lock, moved ? kLeastGap : Seconds(0), pressing);
      urgent = moved = false;
    }
    if (own.ending == Beat::Ending::kNone) own.ending = Beat::Ending::kFinished;
    const Beat last = own;
    if (reachable) {
      lock.unlock();
      on_store([&] { post_beat(*store, where.rank, last); });
      store.reset();
      lock.lock();
    }
    done = true;
    told.notify_all();
  }

  template <typename Use>
  bool on_store(const Use& use) {
    try {
      if (!store) {
        const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(
            std::max(Seconds(2), 2 * interval));
        Connections made;
        store = connect_to_store(where, where.store_prefix + kNoticesPrefix, patience, &made);
        store_watchdog.watch_connections(std::move(made));
      }
      const StoreWatchdog::Request request(store_watchdog);
      use();
      const std::lock_guard lock(mutex);
      last_reached = Clock::now();
      reachable = true;
      refused_since.reset();
      return true;
    } catch (const std::exception& error) {
      // The store is gone or silent. The next beat tries a new connection.
      store.reset();
      const std::lock_guard lock(mutex);
      if (!refused_since && dynamic_cast<const StoreIsGone*>(&error)) refused_since = Clock::now();
      reachable = false;
      return false;
    }
  }

  /// The body of a second thread.
  void watch_store_requests() {
    std::unique_lock lock(mutex);
    while (!stop) {
      store_watchdog.check(collectives ? collectives->now() : StartedCollectives(), own.doing,
                           Clock::now(), timeout);
      wake.wait_for(lock, interval, [&] { return stop; });
    }
  }

  void read_stop_notice() {
    const std::string text = text_at(*store, kStopNotice);
    const std::lock_guard lock(mutex);
    stop_notice = text;
  }

  std::string store_is_gone() const {
    if (!seen_diagnosis.empty()) return seen_diagnosis;
    std::optional<Beat> rank_0 = head;
    has_been_in(rank_0, passed_step, passed);
    return why_store_is_lost(where, rank_0, own.machine, refused_since.has_value());
  }

  /// Ends the run, which needs the store. The ranks save first, without the store.
  void end_without_launcher() {
    const bool saves = on_launcher_gone && on_launcher_gone();
    if (Clock::now() - *refused_since < (saves ? timeout : kGrace)) return;
    const char* more = saves ? " The run could not save and end within ddp_timeout." : "";
    end_process([&] {
      const std::lock_guard lock(mutex);
      return store_is_gone() + more;
    }());
  }

  /// Compares two readings of all beats, some time apart; or takes another rank's diagnosis.
  std::string diagnose(bool reached, Beats& later) {
    std::string known;
    Beats earlier;
    bool has_read = reached && on_store([&] {
                      read_stop_notice();
                      known = text_at(*store, kDiagnosis);
                      earlier = beats_of_all(*store, where.world_size);
                    });
    // A rank's own words and /proc need no second reading.
    if (has_read && is_clear_at_once(earlier, where.rank, own.machine)) {
      later = earlier;
      earlier.assign(where.world_size, std::nullopt);
    } else if (has_read && known.empty()) {
      std::this_thread::sleep_for(interval * kBeatsBetweenChecks);
      has_read = on_store([&] {
        known = text_at(*store, kDiagnosis);
        later = beats_of_all(*store, where.world_size);
      });
    }
    if (!known.empty()) return known;
    {
      const std::lock_guard lock(mutex);
      if (!has_read) return store_is_gone();
      for (std::optional<Beat>& beat : later) has_been_in(beat, passed_step, passed);
    }
    if (blamed_of(earlier, later, where.rank, own.machine).empty() && posts_own_failure()) {
      return "";
    }
    std::string found = diagnosis_of(earlier, later, where.rank, own.machine);
    // The first diagnosis wins. It is posted before this rank ends, since later ranks may find the
    // store (hosted here) gone.
    on_store([&] {
      if (known = text_at(*store, kDiagnosis); known.empty()) put_text(*store, kDiagnosis, found);
    });
    return known.empty() ? found : known;
  }

  /// Tells the others of this rank's own failure. Returns whether there is one.
  bool posts_own_failure() {
    std::unique_lock lock(mutex);
    if (own_failure.empty()) return false;
    own.ending = Beat::Ending::kFailed;
    own.reason = own_failure;
    const Beat beat = own;
    lock.unlock();
    on_store([&] { post_beat(*store, where.rank, beat); });
    return true;
  }

  /// Gives the living ranks time to read from the store, which ends with this process.
  void linger(const Beats& seen) {
    longspan::linger(seen, own.machine, interval, [&] {
      Beats now;
      on_store([&] { now = beats_of_all(*store, where.world_size); });
      return now;
    });
  }

  /// Rank 0 watches all ranks. The others watch rank 0, whose diagnosis holds for all.
  void watch() {
    Beats beats;
    const bool reached = on_store([&] {
      beats = where.rank == 0 ? beats_of_all(*store, where.world_size) : beats_of(*store, {0});
      read_stop_notice();
      const std::string known = text_at(*store, kDiagnosis);
      const std::lock_guard lock(mutex);
      seen_diagnosis = known;
    });
    if (!stop_notice.empty()) {
      // Rank 0 waits for this confirmation. The next beat repeats it where the store is late.
      heard = heard || on_store([&] { put_text(*store, heard_of_stop(where.rank), "yes"); });
      if (!heard && !refused_since && Clock::now() - last_reached < timeout) return;
      wait_until_all_heard_of_stop(where, timeout);
      on_stop_notice(stop_notice);
    }
    if (refused_since && where.launcher_hosts_store) return end_without_launcher();
    const Clock::time_point now = Clock::now();
    std::string lost = seen_diagnosis;
    if (reached && lost.empty()) {
      lost = silence.check(beats, where.rank, own.machine, now, timeout);
      const std::string late = stalls.check(beats, now, timeout);
      if (lost.empty()) lost = late;
    }
    {
      const std::lock_guard lock(mutex);
      if (reached && where.rank != 0 && beats[0]) head = beats[0];
      if (!reached && (refused_since || now - last_reached > timeout)) lost = store_is_gone();
    }
    if (lost.empty()) {
      // An alarm that is over must not shorten later waits (Notices::wait_for_all). A rank that
      // still misses another one sounds the alarm again.
      if (noticed && on_store([&] { store->deleteKey(kAlarm); })) noticed.reset();
      return;
    }
    if (!noticed) noticed = now;
    on_store([&] { put_text(*store, kAlarm, lost); });
    if (now - *noticed < kGrace) return;
    if (seen_diagnosis.empty()) {
      on_store([&] { put_text(*store, kDiagnosis, lost); });
      if (where.serves_store() && !beats.empty()) linger(beats);
    }
    {
      // The main thread hangs before it has reported its failure.
      const std::lock_guard lock(mutex);
      if (!own_failure.empty()) lost = own_failure;
    }
    end_process(lost);
  }

  const Rendezvous where;
  const EndProcess end_process;
  const OnStopNotice on_stop_notice;
  const OnLauncherGone on_launcher_gone;
  const Seconds timeout, interval;

  std::mutex mutex;
  std::condition_variable wake, told;
  Beat own = own_beat("set-up");  // the next beat
  int64_t posted_count = 0;
  bool stop = false, done = false, asked = false, answered = false, urgent = false;
  bool moved = false;  // to another step
  // The step before the current one. All ranks were in it, since a step ends with a sum over all.
  int64_t passed_step = 0;
  std::string passed;
  std::string answer, stop_notice;
  std::string own_failure;  // as reported by the main thread
  std::shared_ptr<const CollectiveCounts> collectives;
  Clock::time_point last_reached = Clock::now();
  bool reachable = true;     // the store answered the last question
  std::optional<Beat> head;  // last beat of rank 0
  StoreWatchdog store_watchdog;

  // Used only by the thread.
  c10::intrusive_ptr<c10d::Store> store;
  std::string seen_diagnosis;
  bool heard = false;  // this rank has confirmed the stop notice
  SilenceDetector silence;
  StallDetector stalls;
  std::optional<Clock::time_point> noticed;
  std::optional<Clock::time_point> refused_since;  // since the store's port refuses connections
};

Heartbeat::Heartbeat(const Rendezvous& where, int64_t timeout_seconds, EndProcess end_process,
                     OnStopNotice on_stop_notice, OnLauncherGone on_launcher_gone) {
  if (where.world_size == 1) return;
  impl_ = std::make_shared<Impl>(where, timeout_seconds, std::move(end_process),
                                 std::move(on_stop_notice), std::move(on_launcher_gone));
  std::thread([impl = impl_] { impl->beat_on(); }).detach();
  std::thread([impl = impl_] { impl->watch_store_requests(); }).detach();
}

Heartbeat::~Heartbeat() { leave(); }

void Heartbeat::leave() {
  if (!impl_) return;
  std::unique_lock lock(impl_->mutex);
  impl_->stop = true;
  impl_->wake.notify_all();
  const Seconds patience =
      Seconds(3) + (impl_->asked && impl_->where.serves_store() ? 2 * kLingers : Seconds(0));
  impl_->told.wait_for(lock, patience, [&] { return impl_->done; });
}

std::string Heartbeat::card() const {
  if (!impl_) return "";
  const std::lock_guard lock(impl_->mutex);
  return text_of(impl_->own);
}

void Heartbeat::meet(const std::string& card_of_rank_0) {
  if (!impl_) return;
  const std::lock_guard lock(impl_->mutex);
  if (!impl_->head) impl_->head = beat_from(card_of_rank_0);
}

void Heartbeat::tell_of(std::shared_ptr<const CollectiveCounts> collectives) {
  if (!impl_) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->collectives = std::move(collectives);
}

void Heartbeat::stands_at(int64_t step, const std::string& doing) {
  if (!impl_) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->passed_step = std::exchange(impl_->own.step, step);
  impl_->passed = impl_->own.doing;
  impl_->own.doing = doing;
  impl_->moved = true;
  impl_->wake.notify_all();
}

std::string Heartbeat::diagnosis(const std::string& own_failure) {
  if (!impl_) return "";
  std::unique_lock lock(impl_->mutex);
  impl_->own_failure = own_failure;
  if (impl_->own.ending == Beat::Ending::kNone) impl_->own.ending = Beat::Ending::kAsks;
  // Where this machine sees that the store's process is gone, no question is needed.
  if (impl_->head && !impl_->where.launcher_hosts_store && impl_->where.rank != 0) {
    const ProcessState state = state_of_process(*impl_->head, impl_->own.machine);
    if (state == ProcessState::kGone || state == ProcessState::kStopped) {
      impl_->reachable = false;
      return impl_->store_is_gone();
    }
  }
  impl_->asked = true;
  impl_->wake.notify_all();
  const Seconds patience = Seconds(4) + 5 * impl_->interval;
  if (!impl_->told.wait_for(lock, patience, [&] { return impl_->answered; })) {
    impl_->reachable = false;  // the thread hangs in the store
    return impl_->store_is_gone();
  }
  // A process that is being killed closes its connections a moment before it is gone.
  for (int i = 0; i < 20 && !impl_->reachable && impl_->head && !impl_->where.launcher_hosts_store;
       ++i) {
    if (state_of_process(*impl_->head, impl_->own.machine) == ProcessState::kGone) {
      return impl_->store_is_gone();
    }
    impl_->told.wait_for(lock, Seconds(0.05));
  }
  return impl_->answer;
}

std::string Heartbeat::stop_notice() const {
  if (!impl_) return "";
  const std::lock_guard lock(impl_->mutex);
  return impl_->stop_notice;
}

void Heartbeat::failed(const std::string& reason) {
  if (!impl_) return;
  std::unique_lock lock(impl_->mutex);
  impl_->own.ending = Beat::Ending::kFailed;
  impl_->own.reason = reason;
  impl_->urgent = true;
  impl_->wake.notify_all();
  const int64_t next = impl_->own.count + 1;
  impl_->told.wait_for(lock, Seconds(2), [&] { return impl_->posted_count >= next; });
  lock.unlock();
  if (impl_->where.serves_store())
    std::this_thread::sleep_for(impl_->interval * kBeatsBetweenChecks);
}

}  // namespace longspan
