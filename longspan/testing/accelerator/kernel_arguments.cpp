#include "longspan/testing/accelerator/kernel_arguments.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

namespace longspan::testing::accelerator {

at::Tensor Arguments::view(const void* front, at::IntArrayRef sizes, at::ScalarType dtype,
                           at::IntArrayRef strides, bool writes) {
  at::Tensor meta = at::empty({0}, at::device(at::kMeta).dtype(dtype));
  meta = strides.empty() ? meta.new_empty(sizes) : meta.new_empty_strided(sizes, strides);
  const size_t size =
      at::detail::computeStorageNbytes(meta.sizes(), meta.strides(), meta.itemsize());
  uses_.push_back({front, size, writes});
  return at::from_blob(Machine::get().back_of(front), meta.sizes(), meta.strides(),
                       at::device(at::kCPU).dtype(dtype));
}

}  // namespace longspan::testing::accelerator
