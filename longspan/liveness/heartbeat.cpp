#include "longspan/liveness/heartbeat.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "longspan/liveness/heartbeat_thread.h"
#include "longspan/liveness/store_beats.h"

namespace longspan {

using Seconds = std::chrono::duration<double>;

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
  const bool lingers = impl_->asked && impl_->where.serves_store();
  impl_->told.wait_for(lock, Seconds(3) + (lingers ? 2 * kLingers : Seconds(0)),
                       [&] { return impl_->done; });
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

void Heartbeat::has_stepped(const StepTimes& times) {
  if (!impl_) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->own.times = times;
}

std::vector<std::optional<Beat>> Heartbeat::beats() const {
  if (!impl_) return {};
  const std::lock_guard lock(impl_->mutex);
  return impl_->of_all;
}

std::string Heartbeat::diagnosis(const std::string& own_failure) {
  if (!impl_) return "";
  std::unique_lock lock(impl_->mutex);
  impl_->own_failure = own_failure;
  if (impl_->own.ending == Beat::Ending::kNone) {
    impl_->own.ending = Beat::Ending::kAsks;
    impl_->own.reason = own_failure;
  }
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
  // The thread's longest time between two requests, that between two readings of all beats.
  using Clock = Impl::Clock;
  const auto patience = std::chrono::duration_cast<Clock::duration>(
      Seconds(4) + (kBeatsBetweenChecks + 2) * impl_->interval);
  const Clock::time_point asked_at = Clock::now();
  const auto end = [&] {
    return std::max(asked_at, impl_->store_silence.last_answer()) + patience;
  };
  while (!impl_->told.wait_until(lock, end(), [&] { return impl_->answered; })) {
    if (Clock::now() < end()) continue;
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
