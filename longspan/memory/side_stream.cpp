#include "longspan/memory/side_stream.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>

namespace longspan {
namespace {

c10::Stream current_stream(const c10::Stream& like) {
  return c10::impl::VirtualGuardImpl(like.device_type()).getStream(like.device());
}

/// Makes `later` wait for all work that `earlier` has been given so far.
void put_after(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace

SideStream::SideStream(at::Device device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

std::function<void()> SideStream::run(const std::function<void()>& work) const {
  if (!stream_) {
    work();
    return [] {};
  }
  put_after(*stream_, current_stream(*stream_));
  const auto done = std::make_shared<c10::Event>(stream_->device_type());
  {
    const c10::StreamGuard on_the_side(*stream_);
    work();
  }
  done->record(*stream_);
  return [done] { done->synchronize(); };
}

void SideStream::join() const {
  if (stream_) put_after(current_stream(*stream_), *stream_);
}

}  // namespace longspan
