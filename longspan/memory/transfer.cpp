#include "longspan/memory/transfer.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <optional>

namespace longspan {
namespace {

/// Byte alignment of each tensor in the joint copy, for kernels.
constexpr int64_t kAlignment = 64;

int64_t room_of(const at::Tensor& x) {
  return (static_cast<int64_t>(x.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, at::TensorOptions(at::kCPU).dtype(dtype).pinned_memory(true));
}

}  // namespace

// The allocator of pinned memory tracks the copy and does not reuse the memory before the copy has
// ended.
at::Tensor sent_to(const at::Tensor& x, at::Device device) {
  if (device.is_cpu() || !x.is_cpu()) return x.to(device);
  if (x.numel() == 0) return at::empty(x.sizes(), x.options().device(device));
  const c10::NoGradGuard no_grad;
  return pinned(x.sizes(), x.scalar_type()).copy_(x).to(device, /*non_blocking=*/true);
}

std::vector<at::Tensor> sent_to(const std::vector<at::Tensor>& tensors, at::Device device) {
  std::vector<at::Tensor> sent;
  int64_t size = 0;
  bool travels = !device.is_cpu();
  for (const at::Tensor& x : tensors) {
    if (!x.defined()) continue;
    travels = travels && x.is_cpu();
    size += room_of(x);
  }
  if (!travels) {
    for (const at::Tensor& x : tensors) sent.push_back(x.defined() ? sent_to(x, device) : x);
    return sent;
  }
  const c10::NoGradGuard no_grad;
  const at::Tensor on_host = pinned({size}, at::kByte);
  auto* to = size > 0 ? static_cast<char*>(on_host.mutable_data_ptr()) : nullptr;
  for (const at::Tensor& x : tensors) {
    if (!x.defined() || x.numel() == 0) continue;
    const at::Tensor dense = x.contiguous();
    std::memcpy(to, dense.const_data_ptr(), dense.nbytes());
    to += room_of(x);
  }
  const at::Tensor all =
      size > 0 ? on_host.to(device, /*non_blocking=*/true) : at::empty({0}, at::kByte);
  int64_t begin = 0;
  for (const at::Tensor& x : tensors) {
    if (!x.defined()) {
      sent.emplace_back();
    } else if (x.numel() == 0) {
      sent.push_back(at::empty(x.sizes(), x.options().device(device)));
    } else {
      sent.push_back(all.narrow(0, begin, static_cast<int64_t>(x.nbytes()))
                         .view(x.scalar_type())
                         .view(x.sizes()));
      begin += room_of(x);
    }
  }
  return sent;
}

struct ToHost::State {
  at::Tensor on_host;
  std::optional<c10::Event> copied;
};

ToHost::ToHost(const at::Tensor& x) : state_(std::make_shared<State>()) {
  const at::Tensor dense = x.detach().contiguous();
  if (x.is_cpu() || x.numel() == 0) {
    state_->on_host = dense.cpu();
    return;
  }
  state_->on_host = pinned(x.sizes(), x.scalar_type());
  state_->on_host.copy_(dense, /*non_blocking=*/true);
  state_->copied.emplace(x.device().type());
  state_->copied->record(c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()));
}

const at::Tensor& ToHost::here() const {
  if (state_->copied && !state_->copied->query()) state_->copied->synchronize();
  state_->copied.reset();
  return state_->on_host;
}

}  // namespace longspan
