// A second stream of the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace longspan {

/// On CUDA, a separate stream. On the CPU, work runs at once in the caller.
class SideStream {
 public:
  explicit SideStream(at::Device device);

  /// Runs `work` with its kernels on the side stream, concurrently with the current stream but
  /// after all earlier work of the current stream. So memory that `work` allocates is no longer in
  /// use by the current stream. The returned function blocks the host until the work is done.
  std::function<void()> run(const std::function<void()>& work) const;
  /// Makes the current stream wait for all work that the side stream has been given so far.
  void join() const;

 private:
  std::optional<c10::Stream> stream_;
};

}  // namespace longspan
