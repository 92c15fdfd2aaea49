#include "longspan/memory/host_copies.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "longspan/memory/host_memory.h"

namespace longspan {

at::Tensor HostCopies::add(const at::Tensor& tensor, at::ScalarType dtype) {
  const c10::NoGradGuard no_grad;
  if (next_ == blocks_.size()) blocks_.emplace_back();
  at::Tensor& block = blocks_[next_++];
  if (!block.defined() || block.scalar_type() != dtype || block.numel() != tensor.numel()) {
    block.reset();
    block = empty_on_host({tensor.numel()}, dtype, device_);
  }
  at::Tensor copy = block.view(tensor.sizes());
  if (tensor.is_cpu()) {
    copy.copy_(tensor.detach());
  } else {
    // Only the bytes of a contiguous tensor of the same dtype are copied without the host's help.
    copy.copy_(tensor.detach().to(dtype).contiguous(), /*non_blocking=*/!device_.is_cpu());
  }
  return copy;
}

void HostCopies::wait() const {
  if (device_.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device_.type()).getStream(device_).synchronize();
}

}  // namespace longspan
