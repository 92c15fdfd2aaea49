// Transfers between host and device that do not block the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace longspan {

/// Returns a host tensor's copy on `device`, queued on the current stream; returns `x` itself if
/// `x` is already on `device`. The copy goes through pinned memory, so the host continues at once.
at::Tensor sent_to(const at::Tensor& x, at::Device device);
/// Sends several tensors in one copy. The results are views of one tensor. Undefined tensors stay
/// undefined.
std::vector<at::Tensor> sent_to(const std::vector<at::Tensor>& tensors, at::Device device);

/// Transfers a device tensor to the host.
class ToHost {
 public:
  /// Queues the copy on the current stream. A host tensor is returned as it is.
  explicit ToHost(const at::Tensor& x);
  /// Returns the copy on the host. Blocks until the copy has ended.
  const at::Tensor& here() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace longspan
