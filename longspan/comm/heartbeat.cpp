#include "longspan/comm/heartbeat.h"

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

#include "longspan/comm/backend.h"
#include "longspan/comm/beat.h"
#include "longspan/comm/lost_store.h"
#include "longspan/comm/notices.h"
#include "longspan/comm/standstill.h"
#include "longspan/comm/store_beats.h"
#include "longspan/comm/unanswered.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Beats = std::vector<std::optional<Beat>>;

/// What the main thread gets to notice by itself that a rank is gone.
constexpr Seconds kGrace{10};
/// Between two looks at the others, in beats: one that lives has beaten in between.
constexpr double kBeatsBetweenLooks = 2.5;

}  // namespace

/// Shared with the thread, which may hang in a store that hangs, and is then left behind.
struct Heartbeat::Impl {
  Impl(const Rendezvous& rendezvous, int64_t timeout_seconds, EndProcess end, OnStopNotice on_stop,
       OnLauncherGone on_gone)
      : where(rendezvous),
        end_process(std::move(end)),
        on_stop_notice(std::move(on_stop)),
        on_launcher_gone(std::move(on_gone)),
        timeout(static_cast<double>(timeout_seconds)),
        // A handful of beats must fit into the shortest timeout; more often than needed costs the
        // store's host of a large run.
        interval(std::clamp(static_cast<double>(timeout_seconds) / 20, 0.1, 1.0)) {}

  /// The thread. Alone uses `store`.
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
      // Steps of milliseconds are not worth a message each.
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
        unanswered.asks_in(std::move(made));
      }
      const Unanswered::Question question(unanswered);
      use();
      const std::lock_guard lock(mutex);
      last_reached = Clock::now();
      reachable = true;
      refused_since.reset();
      return true;
    } catch (const std::exception& error) {
      // Gone, or not answering: the next beat tries again by a new connection.
      store.reset();
      const std::lock_guard lock(mutex);
      if (!refused_since && dynamic_cast<const StoreIsGone*>(&error)) refused_since = Clock::now();
      reachable = false;
      return false;
    }
  }

  /// Another thread, beside the one that beats.
  void end_unanswered_questions() {
    std::unique_lock lock(mutex);
    while (!stop) {
      unanswered.look(collectives ? collectives->now() : StartedCollectives(), own.doing,
                      Clock::now(), timeout);
      wake.wait_for(lock, interval, [&] { return stop; });
    }
  }

  void look_for_stop_notice() {
    const std::string text = text_at(*store, kStopNotice);
    const std::lock_guard lock(mutex);
    stop_notice = text;
  }

  std::string store_is_gone() const {
    if (!seen_verdict.empty()) return seen_verdict;
    std::optional<Beat> rank_0 = head;
    has_been_in(rank_0, passed_step, passed);
    return why_store_is_lost(where, rank_0, own.machine, refused_since.has_value());
  }

  /// Without the store the run ends; the ranks, which need it no more, save first.
  void end_without_launcher() {
    const bool saves = on_launcher_gone && on_launcher_gone();
    if (Clock::now() - *refused_since < (saves ? timeout : kGrace)) return;
    const char* more = saves ? " The run could not save and end within ddp_timeout." : "";
    end_process([&] {
      const std::lock_guard lock(mutex);
      return store_is_gone() + more;
    }());
  }

  /// Two looks at all ranks, with some beats between them; or what another rank has found.
  std::string diagnose(bool reached, Beats& later) {
    std::string known;
    Beats earlier;
    bool looked = reached && on_store([&] {
                    look_for_stop_notice();
                    known = text_at(*store, kVerdict);
                    earlier = beats_of_all(*store, where.world_size);
                  });
    // What a rank has said itself, and what /proc knows, needs no second look.
    if (looked && is_clear_at_once(earlier, where.rank, own.machine)) {
      later = earlier;
      earlier.assign(where.world_size, std::nullopt);
    } else if (looked && known.empty()) {
      std::this_thread::sleep_for(interval * kBeatsBetweenLooks);
      looked = on_store([&] {
        known = text_at(*store, kVerdict);
        later = beats_of_all(*store, where.world_size);
      });
    }
    if (!known.empty()) return known;
    {
      const std::lock_guard lock(mutex);
      if (!looked) return store_is_gone();
      for (std::optional<Beat>& beat : later) has_been_in(beat, passed_step, passed);
    }
    if (blamed_of(earlier, later, where.rank, own.machine).empty() && posts_own_failure()) {
      return "";
    }
    std::string found = diagnosis_of(earlier, later, where.rank, own.machine);
    // First diagnosis wins. Publish it before exiting: later ranks may find the store (hosted here)
    // gone.
    on_store([&] {
      if (known = text_at(*store, kVerdict); known.empty()) put_text(*store, kVerdict, found);
    });
    return known.empty() ? found : known;
  }

  /// Where this rank fails by itself, tells the others so. Returns whether it does.
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

  /// The store goes with this process: those who live get some time to read from it.
  void linger(const Beats& seen) {
    longspan::linger(seen, own.machine, interval, [&] {
      Beats now;
      on_store([&] { now = beats_of_all(*store, where.world_size); });
      return now;
    });
  }

  /// Rank 0 looks at all, the others at rank 0, whose verdict is everyone's.
  void watch() {
    Beats beats;
    const bool reached = on_store([&] {
      beats = where.rank == 0 ? beats_of_all(*store, where.world_size) : beats_of(*store, {0});
      look_for_stop_notice();
      const std::string known = text_at(*store, kVerdict);
      const std::lock_guard lock(mutex);
      seen_verdict = known;
    });
    if (!stop_notice.empty()) {
      // Rank 0 waits for this word: where the store answers late, the next beat says it again.
      heard = heard || on_store([&] { put_text(*store, heard_of_stop(where.rank), "yes"); });
      if (!heard && !refused_since && Clock::now() - last_reached < timeout) return;
      wait_until_all_heard_of_stop(where, timeout);
      on_stop_notice(stop_notice);
    }
    if (refused_since && where.launcher_hosts_store) return end_without_launcher();
    const Clock::time_point now = Clock::now();
    std::string lost = seen_verdict;
    if (reached && lost.empty()) {
      lost = silence.look(beats, where.rank, own.machine, now, timeout);
      const std::string late = standstill.look(beats, now, timeout);
      if (lost.empty()) lost = late;
    }
    {
      const std::lock_guard lock(mutex);
      if (reached && where.rank != 0 && beats[0]) head = beats[0];
      if (!reached && (refused_since || now - last_reached > timeout)) lost = store_is_gone();
    }
    if (lost.empty()) {
      // What has passed must not shorten the waits that come (Notices::wait_for_all). A rank that
      // still misses somebody sounds the alarm again.
      if (noticed && on_store([&] { store->deleteKey(kAlarm); })) noticed.reset();
      return;
    }
    if (!noticed) noticed = now;
    on_store([&] { put_text(*store, kAlarm, lost); });
    if (now - *noticed < kGrace) return;
    if (seen_verdict.empty()) {
      on_store([&] { put_text(*store, kVerdict, lost); });
      if (where.serves_store() && !beats.empty()) linger(beats);
    }
    {
      // The main thread was about to say it, and hangs.
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
  Beat own = own_beat("set-up");  // what will be posted next
  int64_t posted_count = 0;
  bool stop = false, done = false, asked = false, answered = false, urgent = false;
  bool moved = false;  // to another step
  // What this rank stood in before. All were there: a step ends with a sum of all.
  int64_t passed_step = 0;
  std::string passed;
  std::string answer, stop_notice;
  std::string own_failure;  // which the main thread says
  std::shared_ptr<const CollectiveCounts> collectives;
  Clock::time_point last_reached = Clock::now();
  bool reachable = true;     // the store was, when it was asked last
  std::optional<Beat> head;  // of rank 0
  Unanswered unanswered;

  // The thread's own.
  c10::intrusive_ptr<c10d::Store> store;
  std::string seen_verdict;
  bool heard = false;  // of the stop
  Silence silence;
  Standstill standstill;
  std::optional<Clock::time_point> noticed;
  std::optional<Clock::time_point> refused_since;  // nobody listens where the store was
};

Heartbeat::Heartbeat(const Rendezvous& where, int64_t timeout_seconds, EndProcess end_process,
                     OnStopNotice on_stop_notice, OnLauncherGone on_launcher_gone) {
  if (where.world_size == 1) return;
  impl_ = std::make_shared<Impl>(where, timeout_seconds, std::move(end_process),
                                 std::move(on_stop_notice), std::move(on_launcher_gone));
  std::thread([impl = impl_] { impl->beat_on(); }).detach();
  std::thread([impl = impl_] { impl->end_unanswered_questions(); }).detach();
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
  // Where the store's server is seen to be gone from here nobody needs to be asked.
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
    impl_->reachable = false;  // the thread hangs in it
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
    std::this_thread::sleep_for(impl_->interval * kBeatsBetweenLooks);
}

}  // namespace longspan
