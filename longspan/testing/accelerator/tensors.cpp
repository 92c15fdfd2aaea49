#include "longspan/testing/accelerator/tensors.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>

#include "longspan/testing/accelerator/accelerator.h"

namespace longspan::testing::accelerator {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor tensor_over(const c10::Storage& storage, c10::DispatchKeySet keys, const at::Tensor& x) {
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, x.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides(), x.storage_offset());
  return tensor;
}

}  // namespace

Use use_of(const at::Tensor& x, bool writes) {
  if (!x.defined() || x.numel() == 0) return {};
  const size_t size = at::detail::computeStorageNbytes(x.sizes(), x.strides(), x.itemsize());
  return {x.const_data_ptr(), size, writes};
}

at::Tensor KernelSide::of(const at::Tensor& x) {
  if (!x.defined()) return x;
  const void* const front = x.storage().data();
  if (x.is_cpu() && !Machine::get().is_pinned(front)) return x;
  const c10::StorageImpl* const key = x.storage().unsafeGetStorageImpl();
  auto at = by_device_.find(key);
  if (at == by_device_.end()) {
    const c10::Storage of_kernel(c10::Storage::use_byte_size_t(), x.storage().nbytes(),
                                 at::DataPtr(Machine::get().back_of(front), at::kCPU),
                                 /*allocator=*/nullptr, /*resizable=*/false);
    at = by_device_.emplace(key, Pair{x.storage(), of_kernel}).first;
    by_kernel_[of_kernel.unsafeGetStorageImpl()] = &at->second;
  }
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  at::Tensor view = tensor_over(at->second.of_kernel, keys, x);
  if (x.unsafeGetTensorImpl()->is_wrapped_number()) {
    view.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return view;
}

bool KernelSide::is_view(const at::Tensor& x) const {
  return x.has_storage() && by_kernel_.contains(x.storage().unsafeGetStorageImpl());
}

at::Tensor KernelSide::view_of(const at::Tensor& x) const {
  return tensor_over(by_kernel_.at(x.storage().unsafeGetStorageImpl())->of_device, kKeys, x);
}

at::Tensor empty_on_device(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                           at::Device device) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kDeviceType), kKeys,
                                           dtype);
}

at::Tensor adopted(const at::Tensor& x, at::Device device, const Launched& launched) {
  if (!x.defined()) return x;
  at::Tensor made = empty_on_device(x.sizes(), x.strides(), x.scalar_type(), device);
  KernelSide side;
  side.of(made).copy_(x);
  Machine::get().also_uses(launched, {use_of(made, /*writes=*/true)});
  return made;
}

}  // namespace longspan::testing::accelerator
