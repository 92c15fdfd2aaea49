// Buffers whose memory is freed and allocated again while tensors over the buffers stay valid.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <utility>

namespace longspan {

/// Parameters begin at multiples of this many elements, since kernels and libraries are faster with
/// an alignment of 64 bytes or more.
inline constexpr int64_t kBufferAlignment = 64;

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Moves the memory of `from` to `to`, and thus to the views of `to`. No other tensor may use the
/// memory of `from`.
inline void move_memory(const at::Tensor& to, const at::Tensor& from) {
  c10::StorageImpl* source = from.storage().unsafeGetStorageImpl();
  at::DataPtr memory = source->set_data_ptr(at::DataPtr(nullptr, from.device()));
  to.storage().unsafeGetStorageImpl()->set_data_ptr(std::move(memory));
}

inline void drop_memory(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, tensor.device()));
}

/// Returns a buffer of this size without memory.
inline at::Tensor buffer_without_memory(int64_t size, const at::TensorOptions& options) {
  at::Tensor buffer = at::empty({0}, options);
  // The storage keeps this size with and without memory.
  buffer.storage().unsafeGetStorageImpl()->set_nbytes(size * buffer.element_size());
  buffer.unsafeGetTensorImpl()->set_sizes_contiguous({size});
  return buffer;
}

/// Returns a leaf over part of a buffer's storage; autograd does not see it as a view.
inline at::Tensor leaf_over(const at::Tensor& buffer, int64_t begin, at::IntArrayRef shape) {
  at::Tensor leaf = at::empty({0}, buffer.options());
  leaf.set_(buffer.storage(), begin, shape, c10::TensorType::contiguousStridesOf(shape));
  return leaf;
}

}  // namespace longspan
