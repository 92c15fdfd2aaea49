#include "longspan/train/rollouts_ahead.h"

#include <chrono>

namespace longspan {

RolloutsAhead::~RolloutsAhead() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void RolloutsAhead::add(int64_t batch, Job job) {
  const std::lock_guard lock(mutex_);
  jobs_.emplace_back(batch, std::move(job));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

std::optional<std::vector<Rollout>> RolloutsAhead::take(int64_t batch, const Waiting& waiting) {
  std::unique_lock lock(mutex_);
  for (;;) {
    for (const std::string& line : std::exchange(lines_, {})) waiting.say(line);
    if (const auto found = made_.find(batch); found != made_.end()) {
      std::vector<Rollout> rollouts = std::move(found->second);
      made_.erase(found);
      return rollouts;
    }
    if (error_) std::rethrow_exception(error_);
    if (waiting.stops()) {
      stops_ = true;
      changed_.notify_all();
      return std::nullopt;
    }
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
}

void RolloutsAhead::run() {
  const Waiting waiting{.stops = [this] { return stops_.load(); },
                        .say =
                            [this](const std::string& line) {
                              const std::lock_guard lock(mutex_);
                              lines_.push_back(line);
                            }};
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stops_ || !jobs_.empty(); });
    if (stops_) return;
    const auto [batch, job] = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    std::optional<std::vector<Rollout>> rollouts;
    std::exception_ptr error;
    try {
      rollouts = job(waiting);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    if (error || !rollouts) return;
    made_[batch] = *std::move(rollouts);
    changed_.notify_all();
  }
}

}  // namespace longspan
