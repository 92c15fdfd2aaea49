// Numbers between host and device for which the host does not wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace longspan {

/// A tensor of the host on a device, behind what the current stream was given; itself where it is
/// there. It goes through pinned memory, so that the host goes on at once.
at::Tensor sent_to(const at::Tensor& x, at::Device device);
/// Several in one copy: what they become are parts of one tensor. Undefined ones stay undefined.
std::vector<at::Tensor> sent_to(const std::vector<at::Tensor>& tensors, at::Device device);

/// A tensor of a device on its way to the host.
class ToHost {
 public:
  /// The copy starts behind what the current stream was given. A tensor of the host stays as it is.
  explicit ToHost(const at::Tensor& x);
  /// The copy, on the host, which waits unless the copy has ended.
  const at::Tensor& here() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace longspan
