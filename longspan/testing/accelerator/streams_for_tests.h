// Shorthands for streams in tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "longspan/testing/accelerator/accelerator.h"

namespace longspan::testing::accelerator {

inline c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(kDeviceType); }

inline at::Device device(int index = 0) {
  return {kDeviceType, static_cast<at::DeviceIndex>(index)};
}

/// The default stream, and streams that this test has not used yet.
inline c10::Stream main_stream() { return guard().getDefaultStream(device()); }
inline c10::Stream another_stream() { return guard().getStreamFromGlobalPool(device()); }

template <typename Work>
auto on(c10::Stream stream, Work&& work) {
  const c10::StreamGuard scope(stream);
  return std::forward<Work>(work)();
}

/// Makes all later work of `later` wait for the earlier work of `earlier`.
inline void wait(c10::Stream later, c10::Stream earlier) {
  c10::Event event(kDeviceType);
  event.record(earlier);
  event.block(later);
}

inline at::TensorOptions on_device(at::ScalarType dtype = at::kFloat, int index = 0) {
  return at::TensorOptions().device(device(index)).dtype(dtype);
}

}  // namespace longspan::testing::accelerator
