#include "longspan/liveness/store_watchdog.h"

namespace longspan {

void StoreWatchdog::watch_connections(Connections connections) {
  const std::lock_guard lock(mutex_);
  connections_ = std::move(connections);
}

void StoreWatchdog::set_under_way(bool under_way) {
  const std::lock_guard lock(mutex_);
  under_way_ = under_way;
  is_new_ = true;
}

void StoreWatchdog::check(const StartedCollectives& begun, const std::string& doing,
                          LastProgress::Clock::time_point now,
                          std::chrono::duration<double> limit) {
  const std::lock_guard lock(mutex_);
  since_.begin(/*num_ranks=*/1, now, limit);
  std::pair<StartedCollectives, std::string> stands(begun, doing);
  if (!under_way_ || is_new_ || stands != last_) since_.has_moved(0);
  is_new_ = false;
  last_ = std::move(stands);
  if (since_.still_for(0) > limit) shut_down(connections_);
}

}  // namespace longspan
