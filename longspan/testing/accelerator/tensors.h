// Tensors of the device as kernels see them.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>

#include "longspan/testing/accelerator/machine.h"

namespace longspan::testing::accelerator {

/// The bytes from a tensor's first number to its last.
Use use_of(const at::Tensor& x, bool writes);

/// Tensors of the CPU over the memory of tensors of a device, which must outlive them, and back.
class KernelSide {
 public:
  /// Undefined tensors stay as they are, and those of the CPU, but pinned ones.
  at::Tensor of(const at::Tensor& x);
  /// Is this tensor over the memory of one that was given?
  bool is_view(const at::Tensor& x) const;
  /// The tensor of the device that is this view of one that was given.
  at::Tensor view_of(const at::Tensor& x) const;

 private:
  struct Pair {
    c10::Storage of_device, of_kernel;
  };
  std::map<const c10::StorageImpl*, Pair> by_device_;
  std::map<const c10::StorageImpl*, const Pair*> by_kernel_;
};

/// A new tensor of the device with the numbers of one of the CPU, for what a launch returns.
at::Tensor adopted(const at::Tensor& x, at::Device device, const Launched& launched);

at::Tensor empty_on_device(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                           at::Device device);

}  // namespace longspan::testing::accelerator
