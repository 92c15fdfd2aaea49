// Batches of rollouts that a thread makes while the model trains.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "longspan/rollouts/rollout.h"
#include "longspan/train/answer_source.h"

namespace longspan {

/// Runs jobs one after the other in a thread, which begins with the first job.
class RolloutsAhead {
 public:
  /// Returns the rollouts of a batch; nullopt: `waiting.stops` returned true.
  using Job = std::function<std::optional<std::vector<Rollout>>(const Waiting& waiting)>;

  RolloutsAhead() = default;
  /// Stops the running job, and drops the others.
  ~RolloutsAhead();
  RolloutsAhead(const RolloutsAhead&) = delete;
  RolloutsAhead& operator=(const RolloutsAhead&) = delete;

  void add(int64_t batch, Job job);
  /// Waits for the rollouts of an added batch. Passes the lines of all jobs to `waiting.say`.
  /// nullopt: `waiting.stops` returned true; the jobs are then stopped. Throws the error of this
  /// job or an earlier one.
  std::optional<std::vector<Rollout>> take(int64_t batch, const Waiting& waiting);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, Job>> jobs_;
  std::map<int64_t, std::vector<Rollout>> made_;
  std::vector<std::string> lines_;
  std::exception_ptr error_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace longspan
