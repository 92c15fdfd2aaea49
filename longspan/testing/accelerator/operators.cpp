// Operators that the CPU's kernels cannot replace: memory, copies between host and device, numbers
// for the host.
#include "longspan/testing/accelerator/operators.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/recorded_operators.h"
#include "longspan/testing/accelerator/tensors.h"

namespace longspan::testing::accelerator {
namespace {

at::Device device_or_current(std::optional<at::Device> device) {
  return device && device->has_index()
             ? *device
             : at::Device(kDeviceType, static_cast<at::DeviceIndex>(current_device()));
}

at::Tensor empty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "only memory of the host can be pinned");
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), c10::GetAllocator(kDeviceType),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "only memory of the host can be pinned");
  return empty_on_device(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                         c10::dtype_or_default(dtype), device_or_current(device));
}

/// Grows the storage and keeps its contents.
void grow(const at::Tensor& x, size_t num_bytes) {
  c10::StorageImpl* const storage = x.storage().unsafeGetStorageImpl();
  if (storage->nbytes() >= num_bytes) return;
  const c10::DeviceGuard guard(x.device());
  const at::Tensor larger =
      at::empty({static_cast<int64_t>(num_bytes)}, x.options().dtype(at::kByte));
  if (const auto held = static_cast<int64_t>(storage->nbytes()); held > 0) {
    const at::Tensor before = at::empty({0}, larger.options());
    before.unsafeGetTensorImpl()->set_storage_keep_dtype(x.storage());
    before.unsafeGetTensorImpl()->set_sizes_contiguous({held});
    larger.narrow(0, 0, held).copy_(before);
  }
  c10::StorageImpl* const from = larger.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(from->set_data_ptr(at::DataPtr(nullptr, x.device())));
  storage->set_nbytes(num_bytes);
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes,
                          std::optional<at::MemoryFormat> /*format*/) {
  const auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  grow(self, at::detail::computeStorageNbytesContiguous(
                 shape, self.itemsize(), static_cast<size_t>(self.storage_offset())));
  self.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset,
                        c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  const auto shape = C10_AS_INTARRAYREF_SLOW(sizes);
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (strides.empty() && !shape.empty()) {
    impl->set_storage_offset(offset.expect_int());
    impl->set_sizes_contiguous(shape);
  } else {
    impl->set_sizes_and_strides(shape, C10_AS_INTARRAYREF_SLOW(strides), offset.expect_int());
  }
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source.storage());
  impl->set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  return self;
}

/// Copies on a device, or between two.
void copy_on_device(const at::Tensor& from, const at::Tensor& to) {
  Machine& machine = Machine::get();
  const c10::DeviceGuard guard(from.device());
  const int stream = current_stream(from.device().index());
  const int of_target = current_stream(to.device().index());
  if (stream != of_target) machine.put_after(stream, machine.behind(of_target));
  machine.launch("copy_", stream, {use_of(from, false), use_of(to, true)});
  if (stream != of_target) machine.put_after(of_target, machine.behind(stream));
  KernelSide side;
  side.of(to).copy_(side.of(from));
}

/// As in CUDA: a copy runs concurrently with the host if non_blocking is set, its host memory is
/// pinned, and no conversion is needed; otherwise the host waits for the stream.
void copy_across(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Machine& machine = Machine::get();
  const bool to_host = to.is_cpu();
  const at::Tensor &host = to_host ? to : from, &device = to_host ? from : to;
  const c10::DeviceGuard guard(device.device());
  const int stream = current_stream(device.device().index());
  const bool pinned = machine.is_pinned(host.const_data_ptr());
  const bool as_is = from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() &&
                     from.is_contiguous() && to.is_contiguous();
  std::vector<Use> uses{use_of(device, !to_host)};
  if (pinned) uses.push_back(use_of(host, to_host));
  const char* const name = to_host ? "copy to the host" : "copy to the device";
  const Launched launched = machine.launch(name, stream, uses);
  const auto num_bytes = static_cast<int64_t>(host.nbytes());
  machine.count_bytes(to_host ? 0 : num_bytes, to_host ? num_bytes : 0);
  KernelSide side;
  side.of(to).copy_(side.of(from));
  if (non_blocking && pinned && as_is) {
    const Allocation& block = *machine.find(host.const_data_ptr());
    const bool known =
        host.storage().data_ptr().get_context() == &block || host.const_data_ptr() == block.front;
    machine.hold_pinned(launched, use_of(host, to_host), known);
  } else {
    machine.wait_on_host(machine.behind(stream), name);
  }
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0) return target;
  const at::Tensor from = self.expand_as(target);
  if (from.is_cpu() || target.is_cpu()) {
    copy_across(from, target, non_blocking);
  } else {
    copy_on_device(from, target);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, /*non_blocking=*/false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  Machine& machine = Machine::get();
  const c10::DeviceGuard guard(self.device());
  const int stream = current_stream(self.device().index());
  machine.launch("item", stream, {use_of(self, false)});
  machine.count_bytes(0, static_cast<int64_t>(self.itemsize()));
  machine.wait_on_host(machine.behind(stream), "item");
  KernelSide side;
  return side.of(self).item();
}

/// bf16 matrices with an fp32 result, which ATen has no CPU kernel for. The variant that adds to an
/// fp32 tensor is missing, as in the first versions of torch with this operator.
at::Tensor mm_dtype(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  const c10::DeviceGuard guard(a.device());
  return run_kernel("mm", {a, b}, {}, [&](const Tensors& x) -> Tensors {
    return {at::mm(x[0].to(dtype), x[1].to(dtype))};
  })[0];
}

at::Tensor& mm_dtype_out(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype,
                         at::Tensor& out) {
  const c10::DeviceGuard guard(a.device());
  run_kernel("mm", {a, b}, {out}, [&](const Tensors& x) -> Tensors {
    at::Tensor c = x[2];
    c.copy_(at::mm(x[0].to(dtype), x[1].to(dtype)));
    return {};
  });
  return out;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  const int device = stream.device().has_index() ? stream.device_index() : current_device();
  Machine::get().tell_of(self.storage().data(), Machine::get().stream(device, stream.id()));
}

}  // namespace

void register_operators() {
  constexpr auto kKey = c10::DispatchKey::PrivateUse1;
  static torch::Library any(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  any.fallback(torch::CppFunction::makeFromBoxedFunction<run_on_device>());
  static torch::Library aten(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  // Operators with a kernel here are always recorded, since they are few.
  const auto add = [](const char* name, auto kernel) {
    aten.impl(name, kernel);
    if (records_operators()) record_operator(std::string("aten::") + name);
  };
  add("empty.memory_format", TORCH_FN(empty));
  add("empty_strided", TORCH_FN(empty_strided));
  add("resize_", TORCH_FN(resize_));
  add("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  add("set_.source_Tensor", TORCH_FN(set_tensor));
  add("_copy_from", TORCH_FN(copy_from));
  add("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  add("_local_scalar_dense", TORCH_FN(local_scalar));
  add("record_stream", TORCH_FN(record_stream));
  add("mm.dtype", TORCH_FN(mm_dtype));
  add("mm.dtype_out", TORCH_FN(mm_dtype_out));
}

}  // namespace longspan::testing::accelerator
