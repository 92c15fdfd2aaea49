#include "longspan/memory/copier.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace longspan {

/// For a worker: `done` and the exception. For CUDA: an event, and the host tensor of the copy,
/// which must live until the copy has ended.
struct Copy::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;

  std::optional<c10::Event> event;
  at::Tensor on_host;
  const void* host_memory = nullptr;

  void finish(std::exception_ptr what) {
    const std::lock_guard lock(mutex);
    done = true;
    error = std::move(what);
    changed.notify_all();
  }
};

void Copy::wait() const {
  if (state_->event) {
    const c10::impl::VirtualGuardImpl device(state_->event->device_type());
    state_->event->block(device.getStream(state_->event->device()));
    return;
  }
  wait_on_host();
}

void Copy::wait_on_host() const {
  if (state_->event) {
    if (!state_->event->query()) state_->event->synchronize();
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->done; });
  if (state_->error) std::rethrow_exception(state_->error);
}

struct Worker::Impl {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<std::function<void()>, std::shared_ptr<Copy::State>>> jobs;
  bool ends = false;
  std::thread thread;

  void work() {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return ends || !jobs.empty(); });
      if (jobs.empty()) return;
      auto [job, state] = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        job();
      } catch (...) {
        error = std::current_exception();
      }
      job = nullptr;
      state->finish(std::move(error));
    }
  }
};

Worker::Worker(at::Device device) : impl_(std::make_unique<Impl>()) {
  impl_->thread = std::thread([impl = impl_.get(), device] {
    if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    impl->work();
  });
}

Worker::~Worker() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ends = true;
  }
  impl_->changed.notify_all();
  impl_->thread.join();
}

Copy Worker::run(std::function<void()> job) {
  const auto state = std::make_shared<Copy::State>();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->jobs.emplace_back(std::move(job), state);
  }
  impl_->changed.notify_all();
  return Copy(state);
}

struct Copier::Impl {
  explicit Impl(at::Device of) : device(of) {}

  at::Device device;
  std::optional<Worker> worker;  // CPU
  /// CUDA: one stream for each direction, since a GPU has a copy engine for each.
  std::optional<c10::Stream> to_host, to_device;
  std::deque<std::shared_ptr<Copy::State>> under_way;

  /// Returns an event recorded after all work that `from` has been given so far.
  static c10::Event mark(const c10::Stream& from) {
    c10::Event event(from.device_type());
    event.record(from);
    return event;
  }

  Copy start_on_stream(at::Tensor target, at::Tensor source, Keeper keeper) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::Stream stream = target.is_cpu() ? *to_host : *to_device;
    mark(guard.getStream(device)).block(stream);
    const auto state = std::make_shared<Copy::State>();
    state->host_memory = (target.is_cpu() ? target : source).const_data_ptr();
    for (const auto& earlier : under_way) {
      if (earlier->host_memory == state->host_memory) earlier->event->block(stream);
    }
    {
      const c10::StreamGuard scope(stream);
      target.copy_(source, /*non_blocking=*/true);
      state->event.emplace(mark(stream));
    }
    // Neither side's memory may be reused before the copy has ended. record_stream tells torch's
    // allocator of the copy's stream; it then reuses the device memory only after the caller has
    // released the tensor and the copy has ended.
    if (keeper == Keeper::kAllocator) (target.is_cpu() ? source : target).record_stream(stream);
    state->on_host = target.is_cpu() ? std::move(target) : std::move(source);
    let_go_of_ended();
    under_way.push_back(state);
    return Copy(state);
  }

  void let_go_of_ended() {
    std::erase_if(under_way, [](const auto& earlier) {
      if (!earlier->event->query()) return false;
      earlier->on_host.reset();
      return true;
    });
  }
};

Copier::Copier(at::Device device) : impl_(std::make_unique<Impl>(device)) {
  if (device.is_cpu()) {
    impl_->worker.emplace();
  } else {
    const c10::impl::VirtualGuardImpl guard(device.type());
    impl_->to_host = guard.getStreamFromGlobalPool(device);
    impl_->to_device = guard.getStreamFromGlobalPool(device);
  }
}

Copier::~Copier() {
  try {
    while (!impl_->under_way.empty()) {
      impl_->under_way.front()->event->synchronize();
      impl_->under_way.front()->on_host.reset();
      impl_->under_way.pop_front();
    }
  } catch (const std::exception&) {
    // The device has failed; the next call that uses it reports the error. Host memory that a copy
    // may still write to is leaked.
    for (const auto& state : impl_->under_way)
      static_cast<void>(state->on_host.unsafeReleaseTensorImpl());
  }
}

void Copier::let_go_of_ended() { impl_->let_go_of_ended(); }

Copy Copier::start(at::Tensor target, at::Tensor source, Keeper keeper) {
  TORCH_CHECK(target.sizes() == source.sizes() && target.dtype() == source.dtype() &&
                  target.is_contiguous() && source.is_contiguous(),
              "a copy beside the computation is of equal, contiguous tensors");
  if (!impl_->worker) return impl_->start_on_stream(std::move(target), std::move(source), keeper);
  return impl_->worker->run([target = std::move(target), source = std::move(source)] {
    std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
  });
}

}  // namespace longspan
