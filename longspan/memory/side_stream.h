// A second queue of work for the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace longspan {

/// A stream of its own on CUDA. On the CPU there are no queues: work is done as it comes.
class SideStream {
 public:
  explicit SideStream(at::Device device);

  /// What `work` gives to the device runs beside the current stream, but after all that the current
  /// stream was given before; so memory that is allocated on the side is no longer in use there.
  /// The returned function makes the host wait until the work is done.
  std::function<void()> run(const std::function<void()>& work) const;
  /// The current stream goes on after what the side stream was given so far.
  void join() const;

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace longspan
