// Calls with a time limit.
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

/// About 30 years. A clock of nanoseconds in 64 bits overflows at about ten times this duration.
inline constexpr int64_t kLongestWaitSeconds = 1'000'000'000;

/// Returns `seconds` as a duration, at least 0 and at most kLongestWaitSeconds.
inline std::chrono::seconds patience_of(int64_t seconds) {
  return std::chrono::seconds(std::clamp<int64_t>(seconds, 0, kLongestWaitSeconds));
}

/// Runs `call` on a new thread. Returns the result of `call`, or throws the exception of `call`.
/// Returns nullopt where `call` is still running after `patience`. The thread is then left behind,
/// so `call` must own everything that it uses.
template <typename T>
std::optional<T> within(std::chrono::milliseconds patience, std::function<T()> call) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(call));
  std::future<T> answer = task->get_future();
  std::thread([task = std::move(task)] { (*task)(); }).detach();
  if (answer.wait_for(patience) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace longspan
