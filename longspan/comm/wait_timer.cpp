#include "longspan/comm/wait_timer.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <deque>
#include <utility>
#include <vector>

namespace longspan {
namespace {

/// Waits whose events are kept before a look at those that have ended.
constexpr size_t kMostOpen = 64;

}  // namespace

struct WaitTimer::Impl {
  using Wait = std::pair<c10::Event, c10::Event>;  // before, after

  double seconds = 0.0;
  std::deque<Wait> open;   // in the order of the stream
  std::vector<Wait> free;  // events to record again
};

WaitTimer::WaitTimer() : impl_(std::make_unique<Impl>()) {}
WaitTimer::~WaitTimer() = default;

void WaitTimer::measure(c10::DeviceType device, const std::function<void()>& wait) {
  if (device == c10::kCPU) {
    const auto start = std::chrono::steady_clock::now();
    wait();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    impl_->seconds += passed.count();
    return;
  }
  constexpr auto kWithTime = c10::EventFlag::BACKEND_DEFAULT;
  const c10::impl::VirtualGuardImpl guard(device);
  const c10::Stream stream = guard.getStream(guard.getDevice());
  // Computation goes on beside the waits of another stream.
  if (stream != guard.getDefaultStream(guard.getDevice())) return wait();
  if (impl_->open.size() >= kMostOpen) seconds();
  Impl::Wait events = impl_->free.empty()
                          ? Impl::Wait(c10::Event(device, kWithTime), c10::Event(device, kWithTime))
                          : std::move(impl_->free.back());
  if (!impl_->free.empty()) impl_->free.pop_back();
  events.first.record(stream);
  wait();
  events.second.record(stream);
  impl_->open.push_back(std::move(events));
}

double WaitTimer::seconds() {
  while (!impl_->open.empty()) {
    auto& [before, after] = impl_->open.front();
    if (!after.query()) break;
    impl_->seconds += before.elapsedTime(after) / 1000.0;
    impl_->free.push_back(std::move(impl_->open.front()));
    impl_->open.pop_front();
  }
  return impl_->seconds;
}

}  // namespace longspan
