// Waits for a call that may never return, but for a limited time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace longspan {

/// Some 30 years. A clock that counts nanoseconds in 64 bits cannot add ten times that to its time.
inline constexpr int64_t kLongestWaitSeconds = 1'000'000'000;

/// That many seconds, or as many as a clock can wait.
inline std::chrono::seconds patience_of(int64_t seconds) {
  return std::chrono::seconds(std::clamp<int64_t>(seconds, 0, kLongestWaitSeconds));
}

/// Runs `call` on a thread of its own. Returns what it returns, or throws what it throws; nullopt
/// when it has done neither after `patience`. The thread is then left behind, so that `call` must
/// own whatever it uses.
template <typename T>
std::optional<T> within(std::chrono::milliseconds patience, std::function<T()> call) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(call));
  std::future<T> answer = task->get_future();
  std::thread([task = std::move(task)] { (*task)(); }).detach();
  if (answer.wait_for(patience) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace longspan
