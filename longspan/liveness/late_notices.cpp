#include "longspan/liveness/late_notices.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "longspan/rendezvous/store_client.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenTries{250};

}  // namespace

struct LateNotices::Owed {
  struct Notice {
    std::string key;
    Clock::time_point end;
  };

  Owed(const Rendezvous& of_run, std::string keys, std::chrono::milliseconds of_question)
      : where(of_run), prefix(std::move(keys)), patience(of_question) {}

  /// The body of the thread, which alone removes notices.
  void work() {
    StoreClient store(where, prefix, patience);
    std::unique_lock lock(mutex);
    while (!ends && !notices.empty()) {
      const Notice next = notices.front();
      lock.unlock();
      const bool done = store.add(next.key, 1) || store.is_gone() || Clock::now() >= next.end;
      lock.lock();
      if (done) {
        notices.pop_front();
      } else {
        wake.wait_for(lock, kBetweenTries, [&] { return ends; });
      }
    }
    has_thread = false;
  }

  const Rendezvous where;
  const std::string prefix;
  const std::chrono::milliseconds patience;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Notice> notices;
  bool has_thread = false, ends = false;
};

LateNotices::LateNotices(const Rendezvous& where, std::string prefix,
                         std::chrono::milliseconds patience)
    : owed_(std::make_shared<Owed>(where, std::move(prefix), patience)) {}

LateNotices::~LateNotices() {
  const std::lock_guard lock(owed_->mutex);
  owed_->ends = true;
  owed_->wake.notify_all();
}

void LateNotices::put(const std::string& key, std::chrono::milliseconds timeout) {
  const std::lock_guard lock(owed_->mutex);
  owed_->notices.push_back({key, Clock::now() + timeout});
  if (owed_->has_thread) return;
  try {
    std::thread([owed = owed_] { owed->work(); }).detach();
    owed_->has_thread = true;  // before the thread reads it: the thread waits for the lock
  } catch (const std::system_error&) {
    // The others learn it from the alarm, or from the next notice.
  }
}

}  // namespace longspan
