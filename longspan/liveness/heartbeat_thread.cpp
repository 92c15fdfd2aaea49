#include "longspan/liveness/heartbeat_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "longspan/liveness/lost_store.h"
#include "longspan/liveness/notices.h"
#include "longspan/liveness/store_beats.h"
#include "longspan/rendezvous/store.h"

namespace longspan {
namespace {

/// Time for the main thread to notice by itself that a rank is gone.
constexpr std::chrono::duration<double> kGrace{10};

}  // namespace

Heartbeat::Impl::Impl(const Rendezvous& rendezvous, int64_t timeout_seconds, EndProcess end,
                      OnStopNotice on_stop, OnLauncherGone on_gone)
    : where(rendezvous),
      end_process(std::move(end)),
      on_stop_notice(std::move(on_stop)),
      on_launcher_gone(std::move(on_gone)),
      timeout(static_cast<double>(timeout_seconds)),
      // A few beats must fit into the shortest timeout. More beats would load the store's host in
      // a large run.
      interval(std::clamp(static_cast<double>(timeout_seconds) / 20, 0.1, 1.0)) {}

Heartbeat::Impl::~Impl() = default;

void Heartbeat::Impl::beat_on() {
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

bool Heartbeat::Impl::on_store(const std::function<void()>& use) {
  try {
    if (!store) {
      const auto patience =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::max(Seconds(2), 2 * interval));
      Connections made;
      store = connect_to_store(where, where.store_prefix + kNoticesPrefix, patience, &made);
      store_watchdog.watch_connections(std::move(made));
    }
    const StoreWatchdog::Request request(store_watchdog);
    use();
    const std::lock_guard lock(mutex);
    store_silence.answered(Clock::now());
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

void Heartbeat::Impl::watch_store_requests() {
  std::unique_lock lock(mutex);
  while (!stop) {
    store_watchdog.check(collectives ? collectives->now() : StartedCollectives(), own.doing,
                         Clock::now(), timeout);
    wake.wait_for(lock, interval, [&] { return stop; });
  }
}

void Heartbeat::Impl::read_stop_notice() {
  const std::string text = text_at(*store, kStopNotice);
  const std::lock_guard lock(mutex);
  stop_notice = text;
}

std::string Heartbeat::Impl::store_is_gone() const {
  if (!seen_diagnosis.empty()) return seen_diagnosis;
  std::optional<Beat> rank_0 = head;
  has_been_in(rank_0, passed_step, passed);
  return why_store_is_lost(where, rank_0, own.machine, refused_since.has_value());
}

void Heartbeat::Impl::end_without_launcher() {
  const bool saves = on_launcher_gone && on_launcher_gone();
  if (Clock::now() - *refused_since < (saves ? timeout : kGrace)) return;
  const char* more = saves ? " The run could not save and end within ddp_timeout." : "";
  end_process([&] {
    const std::lock_guard lock(mutex);
    return store_is_gone() + more;
  }());
}

std::string Heartbeat::Impl::diagnose(bool reached, Beats& later) {
  if (reached && where.rank != 0) {
    std::string known = diagnosis_of_another(/*by_rank_0=*/true);
    if (known.empty()) known = diagnosis_of_another(/*by_rank_0=*/false, num_readers_before());
    // Rank 0 quotes this rank, whose own message says as much.
    if (known.starts_with(fmt::format("Rank {} (", where.rank)) && posts_own_failure()) return "";
    if (!known.empty()) return known;
  }
  return own_diagnosis(reached, later);
}

int64_t Heartbeat::Impl::num_readers_before() {
  int64_t turn = 1;
  on_store([&] { turn = store->add(kDiagnosing, 1); });
  return std::min(turn - 1, kMostReadersBefore);
}

std::string Heartbeat::Impl::diagnosis_of_another(bool by_rank_0, int64_t num_others) {
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   num_others * kBeatsOfAnswer * interval);
  for (std::string known;;) {
    Beats head_now;
    const bool answered_now = on_store([&] {
      read_stop_notice();
      known = text_at(*store, kDiagnosis);
      if (by_rank_0) head_now = beats_of(*store, {0});
    });
    if (!known.empty() || !answered_now || Clock::now() >= end) return known;
    if (by_rank_0 && (!head_now[0] || has_left(*head_now[0], own.machine))) return "";
    std::this_thread::sleep_for(interval / 2);
  }
}

std::string Heartbeat::Impl::own_diagnosis(bool reached, Beats& later) {
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

bool Heartbeat::Impl::posts_own_failure() {
  std::unique_lock lock(mutex);
  if (own_failure.empty()) return false;
  own.ending = Beat::Ending::kFailed;
  own.reason = own_failure;
  const Beat beat = own;
  lock.unlock();
  on_store([&] { post_beat(*store, where.rank, beat); });
  return true;
}

void Heartbeat::Impl::linger(const Beats& seen) {
  longspan::linger(seen, own.machine, interval, [&] {
    Beats now;
    on_store([&] { now = beats_of_all(*store, where.world_size); });
    return now;
  });
}

void Heartbeat::Impl::answer_questions(const Beats& now) {
  const auto asks = [](const std::optional<Beat>& beat) {
    return beat && beat->ending == Beat::Ending::kAsks;
  };
  if (std::ranges::none_of(now, asks)) {
    questions_since.reset();
    return;
  }
  if (!questions_since) {
    questions_since = Clock::now();
    at_question = now;
  }
  const bool is_clear = is_clear_at_once(now, where.rank, own.machine);
  if (!is_clear && Clock::now() - *questions_since < interval * kBeatsBetweenChecks) return;
  Beats later = now;
  {
    const std::lock_guard lock(mutex);
    for (std::optional<Beat>& beat : later) has_been_in(beat, passed_step, passed);
  }
  const Beats earlier = is_clear ? Beats(now.size()) : at_question;
  std::string found = blamed_of(earlier, later, where.rank, own.machine);
  // If nobody is to blame, a cause that only a rank that asks knows is the best answer.
  for (size_t rank = 0; found.empty() && rank < later.size(); ++rank) {
    if (!asks(later[rank]) || later[rank]->reason.empty()) continue;
    Beat failed = *later[rank];
    failed.ending = Beat::Ending::kFailed;
    found = blame(static_cast<int>(rank), failed, failed, own.machine);
  }
  if (found.empty()) found = diagnosis_of(earlier, later, where.rank, own.machine);
  on_store([&] {
    if (text_at(*store, kDiagnosis).empty()) put_text(*store, kDiagnosis, found);
  });
}

void Heartbeat::Impl::watch() {
  Beats beats;
  const bool reached = on_store([&] {
    beats = where.rank == 0 ? beats_of_all(*store, where.world_size) : beats_of(*store, {0});
    read_stop_notice();
    const std::string known = text_at(*store, kDiagnosis);
    const std::lock_guard lock(mutex);
    seen_diagnosis = known;
  });
  if (reached && where.rank == 0 && seen_diagnosis.empty()) answer_questions(beats);
  if (!stop_notice.empty()) {
    // Rank 0 waits for this confirmation. The next beat repeats it where the store is late.
    heard = heard || on_store([&] { put_text(*store, heard_of_stop(where.rank), "yes"); });
    if (!heard && !refused_since && Clock::now() - store_silence.last_answer() < timeout) return;
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
    if (reached && where.rank == 0) of_all = beats;
    if (!reached && (store_silence.check(now, timeout) || refused_since)) lost = store_is_gone();
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

}  // namespace longspan
